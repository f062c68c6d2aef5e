// A program under a fraction of MPS is told how many multiprocessors its device has, not how many it may use.
//
// Libraries choose kernels by that number. On an H100 with driver 580, cuBLAS 13 and cuDNN 9.19 leave tiles of their
// products unwritten for most numbers below 120 of 132, without an error; with the whole number they do not, and
// results are those of a program without a fraction (docs/mps.md, bench/partial_sms.py).
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

// The whole number: for a program that may use fewer, if `gemlet run` has said so (GEMLET_MULTIPROCESSORS); else 0.
int multiprocessors_of(CUdevice device);

// A cooperative launch needs all its blocks at once, and its size may come from the whole number.
CUresult explain_too_large(CUresult result);

}  // namespace gemlet::hook
