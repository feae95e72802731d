"""The facts of this machine: processors, memory, GPUs, their links, and software."""
