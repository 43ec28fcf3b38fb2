// Drives a fuzz target where the compiler has no libFuzzer, with the flags of libFuzzer that it knows:
//
//   fuzz_TARGET [-runs=N] [-max_total_time=SECONDS] [-timeout=SECONDS] [-seed=N] [-max_len=BYTES]
//   [-artifact_prefix=PATH] FILE|FOLDER…
//
// runs the body over all files, then over random changes of them until N inputs have been run or the time is
// over. Without -runs and -max_total_time it stops behind the files. An input that ends the program is kept
// in PATHcrash-PID. Other flags are libFuzzer's alone and mean nothing here.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz.hpp"
#include "mutate.hpp"

extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
// What -malloc_limit_mb and -rss_limit_mb are to libFuzzer.
__attribute__((visibility("default"))) const char* __asan_default_options() {
  return "max_allocation_size_mb=1024:hard_rss_limit_mb=2048";
}
}

namespace {

using annulus::fuzz::Input;

struct Options {
  std::uint64_t runs = 0, seconds = 0, seed = 1, max_size = 0, timeout = 10;
  std::string artifact_prefix = "./";
  std::vector<std::filesystem::path> paths;
};

[[noreturn]] void usage(const std::string& why) {
  std::fprintf(stderr, "%s: see the head of tests/fuzz/standalone.cpp\n", why.c_str());
  std::exit(2);
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with('-')) {
      options.paths.emplace_back(argument);
      continue;
    }
    const std::size_t equals = std::min(argument.find('='), argument.size() - 1);
    const std::string name = argument.substr(1, equals - 1), value = argument.substr(equals + 1);
    if (name == "artifact_prefix") options.artifact_prefix = value;
    for (const auto& [known, target] : {std::pair{"runs", &options.runs},
                                        {"max_total_time", &options.seconds},
                                        {"seed", &options.seed},
                                        {"max_len", &options.max_size},
                                        {"timeout", &options.timeout}}) {
      if (name == known &&
          std::from_chars(value.data(), value.data() + value.size(), *target).ec != std::errc())
        usage(argument + " is no number");
    }
  }
  if (options.paths.empty()) usage("no files to start from");
  return options;
}

std::vector<Input> read_inputs(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    if (std::filesystem::is_directory(path))
      for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    else
      files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream.is_open()) usage(file.string() + " cannot be read");
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// The input that is being run, for those who end the program.
const Input* current = nullptr;
std::string artifact;

void keep_input() {
  if (current == nullptr) return;
  const int file = ::open(artifact.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const bool kept =
      file >= 0 && ::write(file, current->data(), current->size()) == static_cast<ssize_t>(current->size());
  std::fprintf(stderr, "the input that did it (%zu bytes) %s %s\n", current->size(),
               kept ? "is kept in" : "could not be kept in", artifact.c_str());
  current = nullptr;
}

void ended_by(int signal) {
  std::fprintf(stderr, "%s\n", signal == SIGALRM ? "an input takes longer than -timeout" : strsignal(signal));
  keep_input();
  ::_exit(1);
}

void watch() {
  const bool sanitized = __sanitizer_set_death_callback != nullptr;
  for (const int signal : {SIGALRM, SIGABRT}) std::signal(signal, ended_by);
  if (sanitized) {
    __sanitizer_set_death_callback(keep_input);  // it tells of the other signals itself
    return;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, ended_by);
  const rlimit memory{rlim_t{1} << 30, rlim_t{1} << 30};
  ::setrlimit(RLIMIT_DATA, &memory);
}

void run(const Input& input, unsigned seconds) {
  current = &input;
  ::alarm(seconds);
  // In memory of its own, behind whose end a sanitizer notices a read.
  const std::unique_ptr<std::uint8_t[]> copy(new std::uint8_t[input.size()]);
  std::copy(input.begin(), input.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), input.size());
  ::alarm(0);
  current = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  artifact = options.artifact_prefix + "crash-" + std::to_string(::getpid());
  const std::vector<Input> corpus = read_inputs(options.paths);
  watch();
  const auto begin = std::chrono::steady_clock::now();
  const auto over = [&] {
    return std::chrono::steady_clock::now() - begin >= std::chrono::seconds(options.seconds);
  };
  const auto timeout = static_cast<unsigned>(options.timeout);
  std::uint64_t runs = 0;
  for (const Input& input : corpus) run(input, timeout), ++runs;
  // Without -max_len: as long as the longest file, as libFuzzer has it.
  std::size_t max_size = options.max_size > 0 ? options.max_size : 4096;
  for (const Input& input : corpus)
    if (options.max_size == 0) max_size = std::max(max_size, input.size());
  annulus::fuzz::Mutator mutator(corpus, options.seed, max_size);
  while (!corpus.empty() && (options.runs > 0 ? runs < options.runs : options.seconds > 0)) {
    if (options.seconds > 0 && over()) break;
    run(mutator.next(), timeout);
    ++runs;
  }
  std::printf("%llu inputs, %zu of them stored: none ended the program\n",
              static_cast<unsigned long long>(runs), corpus.size());
}
