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
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/parse_number.hpp"
#include "fuzz/fuzz.hpp"

extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
// What -malloc_limit_mb and -rss_limit_mb are to libFuzzer.
__attribute__((visibility("default"))) const char* __asan_default_options() {
  return "max_allocation_size_mb=1024:hard_rss_limit_mb=2048";
}
}

namespace {

using Input = std::vector<std::uint8_t>;

/// Changes stored inputs at random, the same way for the same seed.
class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, std::uint64_t seed, std::size_t max_size)
      : corpus_(corpus), random_(seed), max_size_(max_size) {}

  /// One of the corpus after one to eight changes, `max_size` bytes at most.
  Input next();

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const Input& any() { return corpus_[below(corpus_.size())]; }
  void change(Input& input);
  void insert(Input& input, const std::uint8_t* data, std::size_t size);

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
  std::size_t max_size_;
};

// Numbers and texts at which parsers go wrong.
constexpr std::array<std::string_view, 20> hostile = {
    "0",      "-1",       "1",    "2147483647", "2147483648", "9223372036854775807",  "-9223372036854775808",
    "1e308",  "1e999",    "nan",  "-inf",       "1e-320",     "18446744073709551616", "\xff\xfe",
    "\"\"\"", "[[[[[[[[", "\n\n", "%s%n",       "../../..",   ".................."};

std::string_view word_at(const Input& input, std::size_t at) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  constexpr std::string_view ends = " \t\n=:,[]\"+";
  const std::size_t begin = at == 0 ? 0 : text.find_last_of(ends, at - 1) + 1;
  return text.substr(begin, std::min(text.find_first_of(ends, begin), text.size()) - begin);
}

Input Mutator::next() {
  Input input = any();
  for (std::size_t changes = 1 + below(8); changes > 0; --changes) change(input);
  if (input.size() > max_size_) input.resize(max_size_);
  return input;
}

void Mutator::insert(Input& input, const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const Input copy(data, data + size);  // it may be a part of the input
  input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)), copy.begin(),
               copy.end());
}

void Mutator::change(Input& input) {
  const std::size_t size = input.size(), at = below(size);
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t length = std::min(size - at, std::size_t{1} << below(10));
  switch (size == 0 ? 5 : below(9)) {
    case 0:
      input[at] ^= static_cast<std::uint8_t>(1u << below(8));
      return;
    case 1:
      input[at] = static_cast<std::uint8_t>(random_());
      return;
    case 2:
      input.erase(place, place + static_cast<std::ptrdiff_t>(length));
      return;
    case 3:
      insert(input, input.data() + at, length);
      return;
    case 4:
      input.resize(at);
      return;
    case 5: {
      const std::string_view text = hostile[below(hostile.size())];
      insert(input, reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      return;
    }
    case 6: {  // a word becomes another one, of this input or of another
      const Input& other = below(2) == 0 ? input : any();
      const std::string_view old_word = word_at(input, at);
      const Input word = [&] {
        const std::string_view text =
            below(4) == 0 ? hostile[below(hostile.size())] : word_at(other, below(other.size()));
        return Input(text.begin(), text.end());
      }();
      const auto begin =
          input.begin() + (reinterpret_cast<const std::uint8_t*>(old_word.data()) - input.data());
      const auto hole = input.erase(begin, begin + static_cast<std::ptrdiff_t>(old_word.size()));
      input.insert(hole, word.begin(), word.end());
      return;
    }
    case 7: {  // the head of this one and the tail of another
      const Input& other = any();
      const std::size_t from = below(other.size());
      input.resize(at);
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      return;
    }
    default: {  // a number of 1 to 8 bytes, in either order of bytes
      constexpr std::array<std::uint64_t, 8> numbers = {
          0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~std::uint64_t{0}};
      std::array<std::uint8_t, 8> bytes;
      const std::uint64_t number = numbers[below(numbers.size())] + below(3) - 1;
      std::memcpy(bytes.data(), &number, bytes.size());
      const std::size_t width = std::min(size - at, std::size_t{1} << below(4));
      if (below(2) == 0) std::reverse(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(width));
      std::copy_n(bytes.begin(), width, place);
    }
  }
}

struct Options {
  std::uint64_t runs = 0, seconds = 0, seed = 1, max_size = 0, timeout = 10;
  std::string artifact_prefix = "./";
  std::vector<std::filesystem::path> paths;
};

[[noreturn]] void usage(const std::string& why) {
  std::fprintf(stderr, "%s: see the head of tests/fuzz/standalone/standalone.cpp\n", why.c_str());
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
      if (name != known) continue;
      const auto number = annulus::parse_number<std::uint64_t>(value);
      if (!number) usage(argument + " is no number");
      *target = *number;
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
  Mutator mutator(corpus, options.seed, max_size);
  while (!corpus.empty() && (options.runs > 0 ? runs < options.runs : options.seconds > 0)) {
    if (options.seconds > 0 && over()) break;
    run(mutator.next(), timeout);
    ++runs;
  }
  std::printf("%llu inputs, %zu of them stored: none ended the program\n",
              static_cast<unsigned long long>(runs), corpus.size());
}
