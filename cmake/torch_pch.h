// Precompiled for every room with tensors: ATen alone takes 6 s a file, a file on top of this 2 s.
#pragma once
#include <ATen/ATen.h>
