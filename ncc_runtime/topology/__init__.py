"""Topologies: chips, links, switches and adapters with their rates; routes and cycles."""
