"""No races among the engines and streams of one rank."""
