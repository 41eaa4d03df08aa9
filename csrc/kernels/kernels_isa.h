// Declares the kernels of one instruction set (KARAT_KERNELS in contract/kernels.h). table.cpp puts them into a table.
//
// A build may be another arrangement of an instruction set (KARAT_ARRANGES names that set): it has linear layers of its
// own, or passes of a few tokens on integers (integer_few.cpp), and takes the other kernels from that set.
#pragma once

#include <type_traits>

#include "contract/kernels.h"

#if !defined(KARAT_ARRANGES)
#define KARAT_ARRANGES KARAT_ISA_NAMESPACE
#endif

#define KARAT_DECLARE(name) std::remove_pointer_t<decltype(Kernels::name)> name;

namespace karat::KARAT_ARRANGES {

std::size_t attention_scratch_floats(std::size_t head_dim);
KARAT_KERNELS(KARAT_DECLARE)

}  // namespace karat::KARAT_ARRANGES
namespace karat::KARAT_ISA_NAMESPACE {

using namespace KARAT_ARRANGES;

std::size_t linear_scratch_floats();
KARAT_ARRANGED_KERNELS(KARAT_DECLARE)

}  // namespace karat::KARAT_ISA_NAMESPACE

#undef KARAT_DECLARE
