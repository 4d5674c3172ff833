"""Model files: GGUF, safetensors, and the checkpoint that a runtime is built from."""
