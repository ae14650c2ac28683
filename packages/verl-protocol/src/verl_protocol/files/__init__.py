"""Values in files: in the safetensors format, with a typed header, and no pickle unless asked for."""
