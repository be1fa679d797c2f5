"""Plans that users write: MSCCL XML and a JSON of our own, read, checked and made into plans."""
