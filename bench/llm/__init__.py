"""What sharing a device costs programs that wait for their host, with the frameworks people use."""
