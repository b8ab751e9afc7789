"""Devices: meshes, several processes, state on the host or in a file, memory, the compilation cache."""
