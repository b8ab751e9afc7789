"""Devices: meshes, several processes, state in host memory, the search for NaN, the compilation cache."""
