# What the extension and the native tests are both made of: the kernels, once for each instruction set, and the plan,
# pool and memory that run them, together as the library `karat`. Needs C++20 and nothing else.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")  # of what is no kernel

set(KARAT_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize= (address,undefined or thread)")
if(KARAT_SANITIZE)
  # What is wrong ends the program, and the standard library checks indices.
  add_compile_options(-fsanitize=${KARAT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${KARAT_SANITIZE})
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()

# The bits of a result are part of the contract: nothing is contracted or reordered, whatever the optimisation level.
# Without errno the square root is one instruction.
# (-Wno-…uninitialized: gcc warns of the undefined vectors inside its own intrinsics.)
set(kernel_options -O3 -ffp-contract=off -fno-fast-math -fno-math-errno -Wall -Wextra -Wno-maybe-uninitialized -Wno-uninitialized
                   -Werror=double-promotion)
if(KARAT_SANITIZE)
  list(APPEND kernel_options -O1)  # at -O3 a compiler works for many minutes on all the checks
endif()

# A kernel source is compiled once for each instruction set. The compiler is asked what it compiles for, not the
# name of the machine: cross builds and macOS' two architectures in one binary come out right, without flags of another
# machine.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
#if !defined(__x86_64__)
#error not x86-64
#endif
int main() { return 0; }" KARAT_X86)
check_cxx_source_compiles("
#if !defined(__aarch64__)
#error not 64-bit Arm
#endif
int main() { return 0; }" KARAT_ARM)

option(KARAT_ONLY_THIS_CPU "Of the builds for x86-64 only what this processor would choose: for a quick start" OFF)
option(KARAT_ONLY_RUNNABLE "Builds for x86-64 that this processor cannot run are read for errors and left out: for tests" OFF)

# Tiles are used by assembly, which old assemblers do not know.
set(amx -mamx-tile -mamx-bf16)
set(CMAKE_REQUIRED_FLAGS "-mamx-tile -mamx-bf16")
check_cxx_source_compiles("
int main() { __asm__ volatile(\"tdpbf16ps %tmm2, %tmm1, %tmm0\"); return 0; }" KARAT_KNOWS_AMX)
unset(CMAKE_REQUIRED_FLAGS)
option(KARAT_TILES_BY_LOOPS "The build avx512-amx with loops for tiles, where there is VNNI: for tests" OFF)

# The builds that make up what the processor of this machine would choose, beside the generic one.
function(karat_builds_of_this_cpu result)
  set(CMAKE_REQUIRED_FLAGS -march=native)
  check_cxx_source_compiles("
#if !defined(__AVX512F__) || !defined(__AVX512BW__)
#error no AVX-512
#endif
int main() { return 0; }" KARAT_CPU_HAS_AVX512)
  check_cxx_source_compiles("
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error no AVX2
#endif
int main() { return 0; }" KARAT_CPU_HAS_AVX2)
  check_cxx_source_compiles("
#if !defined(__AVX512VNNI__)
#error no VNNI
#endif
int main() { return 0; }" KARAT_CPU_HAS_AVX512_VNNI)
  check_cxx_source_compiles("
#if !defined(__AVXVNNI__)
#error no VNNI
#endif
int main() { return 0; }" KARAT_CPU_HAS_AVX_VNNI)
  check_cxx_source_compiles("
#if !defined(__AMX_TILE__) || !defined(__AMX_BF16__)
#error no tiles
#endif
int main() { return 0; }" KARAT_CPU_HAS_AMX)
  set(maker "${KARAT_CPU_MAKER}")  # a test states it, and what the processor has
  if(NOT maker AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo maker REGEX "^vendor_id" LIMIT_COUNT 1)
  endif()
  set(builds "")
  if(KARAT_CPU_HAS_AVX512_VNNI AND maker MATCHES "AuthenticAMD")
    set(builds avx512 avx512_vnni)
  elseif(KARAT_CPU_HAS_AVX512_VNNI)
    set(builds avx512 avx512_intel)
    if(KARAT_CPU_HAS_AMX)
      list(APPEND builds avx512_amx)
    endif()
  elseif(KARAT_CPU_HAS_AVX512)
    set(builds avx512)
  elseif(KARAT_CPU_HAS_AVX2 AND KARAT_CPU_HAS_AVX_VNNI)
    set(builds avx2 avx2_vnni)
  elseif(KARAT_CPU_HAS_AVX2)
    set(builds avx2)
  endif()
  set(${result} ${builds} PARENT_SCOPE)
endfunction()

set(source_dir "${CMAKE_CURRENT_LIST_DIR}/../csrc")
set(arranged_integer_sources integer_few.cpp integer_table.cpp)  # what an arrangement has of its own
set(shared_integer_sources integer_many.cpp integer_rows.cpp)
set(amx_sources amx_many.cpp amx_rows.cpp amx_table.cpp)
set(linear_sources linear.cpp linear_few.cpp linear_many.cpp linear_one.cpp table.cpp)
set(other_sources attention.cpp attention_direct.cpp attention_tiled.cpp elementwise.cpp embedding.cpp experts.cpp
    norm.cpp recurrence.cpp)
list(TRANSFORM arranged_integer_sources PREPEND kernels/)
list(TRANSFORM shared_integer_sources PREPEND kernels/)
list(TRANSFORM amx_sources PREPEND kernels/)
list(TRANSFORM linear_sources PREPEND kernels/)
list(TRANSFORM other_sources PREPEND kernels/)
list(APPEND other_sources search/k_fit.cpp search/level_fit.cpp)  # what `karat convert` searches with
list(APPEND other_sources measure/limits.cpp)  # what bounds them, measured by `karat bench`
list(TRANSFORM arranged_integer_sources PREPEND "${source_dir}/")
list(TRANSFORM shared_integer_sources PREPEND "${source_dir}/")
set(integer_sources ${arranged_integer_sources} ${shared_integer_sources})
list(TRANSFORM amx_sources PREPEND "${source_dir}/")
list(TRANSFORM linear_sources PREPEND "${source_dir}/")
list(TRANSFORM other_sources PREPEND "${source_dir}/")
set(native_sources formats/packed.cpp group/collective.cpp kernels/sampling.cpp plan/finish.cpp plan/fuse.cpp
    plan/plan.cpp plan/step.cpp plan/step_input.cpp plan/weights.cpp runtime/isa.cpp runtime/memory.cpp
    runtime/crew.cpp runtime/pool.cpp runtime/tiles.cpp)
list(TRANSFORM native_sources PREPEND "${source_dir}/")
file(GLOB op_sources CONFIGURE_DEPENDS "${source_dir}/plan/ops/*.cpp")  # an op is a file
list(APPEND native_sources ${op_sources})
set(machine_definitions $<$<BOOL:${KARAT_X86}>:KARAT_X86> $<$<BOOL:${KARAT_ARM}>:KARAT_ARM>)
set(isas "")   # builds to ask for
set(parts "")  # what other builds take from one that is none

# Has the compiler read the sources of a build, as far as it finds errors: a tenth of the time that compiling takes.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${source_dir}/*.h")
function(karat_read isa sources)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/read_${isa}")
  file(MAKE_DIRECTORY "${folder}")
  set(marks "")
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    add_custom_command(
      OUTPUT "${folder}/${name}"
      COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 -fsyntax-only ${kernel_options} ${ARGN} -DKARAT_X86
              -DKARAT_ISA_NAMESPACE=${isa} "-I${source_dir}" "${source}"
      COMMAND "${CMAKE_COMMAND}" -E touch "${folder}/${name}"
      DEPENDS "${source}" ${headers}
      COMMENT "Reading ${name} for ${isa}")
    list(APPEND marks "${folder}/${name}")
  endforeach()
  add_custom_target(read_${isa} ALL DEPENDS ${marks})
endfunction()

# Headers are read once for each set of options: those of intrinsics take longer than most sources.
function(karat_kernels isa sources)
  if(KARAT_ONLY_RUNNABLE AND isa IN_LIST not_runnable)
    karat_read(${isa} "${sources}" ${ARGN})
    return()
  endif()
  add_library(kernels_${isa} OBJECT ${sources})
  target_include_directories(kernels_${isa} PRIVATE ${source_dir})
  target_precompile_headers(kernels_${isa} PRIVATE ${source_dir}/simd/simd.h)
  target_compile_definitions(kernels_${isa} PRIVATE KARAT_ISA_NAMESPACE=${isa} ${machine_definitions})
  target_compile_options(kernels_${isa} PRIVATE ${kernel_options} ${ARGN})
  set(isas ${isas} ${isa} PARENT_SCOPE)
endfunction()
set(all_sources ${linear_sources} ${integer_sources} ${other_sources})

karat_kernels(generic "${all_sources}")
target_compile_definitions(kernels_generic PRIVATE KARAT_GENERIC)  # no intrinsics, also where all machines have them
set(wanted avx2 avx2_vnni avx512 avx512_intel avx512_vnni avx512_amx)
set(not_runnable "")
if(KARAT_ONLY_THIS_CPU)
  karat_builds_of_this_cpu(wanted)
elseif(KARAT_ONLY_RUNNABLE AND KARAT_X86)
  karat_builds_of_this_cpu(chosen)
  if(NOT KARAT_CPU_HAS_AVX512)
    list(APPEND not_runnable avx512)
  endif()
  if(NOT KARAT_CPU_HAS_AVX512_VNNI)
    list(APPEND not_runnable avx512_intel avx512_vnni avx512_vnni_intel)
  endif()
  if(NOT KARAT_CPU_HAS_AVX_VNNI)
    list(APPEND not_runnable avx2_vnni)
  endif()
  if(NOT KARAT_CPU_HAS_AVX512_VNNI OR NOT (KARAT_CPU_HAS_AMX OR KARAT_TILES_BY_LOOPS))
    list(APPEND not_runnable avx512_amx)
  endif()
endif()
if(KARAT_X86 AND "avx2" IN_LIST wanted)
  karat_kernels(avx2 "${all_sources}" -mavx2 -mfma -mf16c)
endif()
set(avx512 -mavx512f -mavx512bw -mavx2 -mfma -mf16c)
if(KARAT_X86 AND "avx512" IN_LIST wanted)
  if(KARAT_ONLY_THIS_CPU AND KARAT_CPU_HAS_AVX512_VNNI)
    # Integers of avx512 would be compiled for half a minute, and nobody would choose them: it is no build to ask for.
    karat_kernels(avx512 "${linear_sources};${other_sources}" ${avx512})
    set_property(SOURCE ${source_dir}/runtime/isa.cpp APPEND PROPERTY COMPILE_DEFINITIONS KARAT_NO_AVX512_INTEGERS)
  else()
    karat_kernels(avx512 "${all_sources}" ${avx512})
  endif()
endif()
# Integers alone, with instructions of their own; of the rest these builds have what they are named after.
if(KARAT_X86 AND "avx2_vnni" IN_LIST wanted)
  karat_kernels(avx2_vnni "${integer_sources}" -mavxvnni -mavx2 -mfma -mf16c)
endif()
if(KARAT_X86 AND "avx512_vnni" IN_LIST wanted)
  karat_kernels(avx512_vnni "${integer_sources}" ${avx512} -mavx512vnni)
endif()
# Arrangements for Intel's cores, where all arithmetic of 512 bits shares two ports and the second-level cache reads
# ahead: linear layers, and passes of a few tokens on integers. Of the rest there is one.
if(KARAT_X86 AND "avx512_intel" IN_LIST wanted)
  karat_kernels(avx512_intel "${linear_sources}" ${avx512} -DKARAT_OF_INTEL -DKARAT_ARRANGES=avx512)
  karat_kernels(avx512_vnni_intel "${arranged_integer_sources}" ${avx512} -mavx512vnni -DKARAT_OF_INTEL
                -DKARAT_ARRANGES=avx512_vnni)
  if(NOT "avx512_vnni" IN_LIST wanted)
    karat_kernels(avx512_vnni "${shared_integer_sources}" ${avx512} -mavx512vnni)
    list(REMOVE_ITEM isas avx512_vnni)  # no build to ask for
    set(parts avx512_vnni)
  endif()
endif()
# Integers of many rows by tiles; of the rest, and of a few rows, this build has what avx512_intel has.
if(KARAT_X86 AND "avx512_amx" IN_LIST wanted AND (KARAT_KNOWS_AMX OR KARAT_TILES_BY_LOOPS))
  if(KARAT_TILES_BY_LOOPS)
    karat_kernels(avx512_amx "${amx_sources}" ${avx512} -mavx512vnni -DKARAT_TILES_BY_LOOPS)
    set_property(SOURCE ${source_dir}/runtime/isa.cpp APPEND PROPERTY COMPILE_DEFINITIONS KARAT_TILES_BY_LOOPS)
  else()
    karat_kernels(avx512_amx "${amx_sources}" ${avx512} -mavx512vnni ${amx})
  endif()
endif()
if(KARAT_ARM)
  karat_kernels(neon "${all_sources}")
  karat_kernels(neon_dotprod "${integer_sources}" -march=armv8.2-a+dotprod)
  karat_kernels(neon_i8mm "${integer_sources}" -march=armv8.2-a+dotprod+i8mm)
endif()

find_package(Threads REQUIRED)
add_library(karat STATIC ${native_sources})
target_include_directories(karat PUBLIC ${source_dir})
target_precompile_headers(karat PRIVATE <algorithm> <atomic> <memory> <mutex> <stdexcept> <string> <thread> <vector>)
target_compile_options(karat PRIVATE -Wall -Wextra)
set_source_files_properties(${source_dir}/kernels/sampling.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")
target_compile_definitions(karat PUBLIC ${machine_definitions})
set_source_files_properties(${source_dir}/runtime/isa.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
foreach(part IN LISTS parts)
  target_link_libraries(karat PRIVATE kernels_${part})
endforeach()
foreach(isa IN LISTS isas)
  target_link_libraries(karat PRIVATE kernels_${isa})
  string(TOUPPER KARAT_WITH_${isa} with)
  set_property(SOURCE ${source_dir}/runtime/isa.cpp APPEND PROPERTY COMPILE_DEFINITIONS ${with})
endforeach()
target_link_libraries(karat PUBLIC Threads::Threads)
