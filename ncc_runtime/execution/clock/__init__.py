"""When each instruction would run on the device model."""
