"""What this machine is: processors, memory, GPUs, their links, and software."""
