"""llama.cpp: layers over devices."""
