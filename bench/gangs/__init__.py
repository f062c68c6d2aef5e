"""Jobs whose ranks wait for each other on several devices: with gangs, without, by time slicing, and alone."""
