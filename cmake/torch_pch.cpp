// Only carries the precompiled header (cmake/torch_pch.h).
