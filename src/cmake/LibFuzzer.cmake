# Whether the compiler has libFuzzer. If so, all modules are compiled so that it sees which branches an input takes.
include(CheckCXXSourceCompiles)

set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
check_cxx_source_compiles([[extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }]]
  ANNULUS_LIBFUZZER)
unset(CMAKE_REQUIRED_FLAGS)
if(ANNULUS_LIBFUZZER)
  string(APPEND ANNULUS_SANITIZE ",fuzzer-no-link")
endif()
