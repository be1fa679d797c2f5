"""From plans to DMA descriptors, CC-core programs and patched engine queues."""
