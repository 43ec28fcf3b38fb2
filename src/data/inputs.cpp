#include "inputs.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/crc32.hpp>

namespace annulus::data {

namespace fs = std::filesystem;

namespace {

InputFile describe(const fs::path& path, std::string key) {
  return {path, std::move(key), fs::file_size(path),
          static_cast<std::int64_t>(fs::last_write_time(path).time_since_epoch().count())};
}

bool wanted(const fs::path& path, std::span<const std::string> extensions) {
  return extensions.empty() ||
         std::find(extensions.begin(), extensions.end(), path.extension().string()) != extensions.end();
}

std::vector<InputFile> walk(const fs::path& folder, std::span<const std::string> extensions) {
  std::vector<InputFile> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator();
       ++entry) {
    if (entry->path().filename().string().front() == '.') {
      if (entry->is_directory()) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && wanted(entry->path(), extensions)) {
      files.push_back(describe(entry->path(), entry->path().lexically_relative(folder).generic_string()));
    }
  }
  std::sort(files.begin(), files.end(), [](const InputFile& a, const InputFile& b) { return a.key < b.key; });
  return files;
}

void require_outside(const fs::path& output, const fs::path& input) {
  const fs::path inner = fs::weakly_canonical(fs::absolute(output)), outer = fs::canonical(input);
  const auto parted = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  require(parted.first != outer.end(),
          "the output folder '{}' lies inside the input '{}', which would make the shards input: choose a "
          "folder outside",
          output.string(), input.string());
}

}  // namespace

std::vector<InputFile> find_inputs(std::span<const fs::path> inputs, std::span<const std::string> extensions,
                                   const fs::path& output) {
  require(!inputs.empty(), "nothing to pack: name files or folders");
  std::vector<InputFile> files;
  for (const fs::path& input : inputs) {
    require(fs::exists(input), "the input '{}' does not exist: check the path", input.string());
    if (fs::is_directory(input)) {
      require_outside(output, input);
      std::vector<InputFile> found = walk(input, extensions);
      std::move(found.begin(), found.end(), std::back_inserter(files));
    } else {
      require(fs::is_regular_file(input), "the input '{}' is neither a file nor a folder", input.string());
      files.push_back(describe(input, input.filename().string()));
    }
  }
  require(!files.empty(), "the inputs hold no files{}: check the paths and --extensions",
          extensions.empty() ? "" : " with the given extensions");
  return files;
}

void InputFingerprint::add(const InputFile& file) {
  const std::string line = fmt::format("{}\n{}\n{}\n", file.key, file.bytes, file.modified);
  crc_ = io::crc32_of(std::span<const char>(line), crc_);
  ++files_;
}

std::string InputFingerprint::text() const {
  return fmt::format("{} files, crc32:{:08x}", files_, crc_);
}

bool begins_as_before(std::span<const InputFile> files, const InputPosition& position) {
  if (position.offset == 0) return position.file <= std::ssize(files);
  if (position.file >= std::ssize(files)) return false;
  std::ifstream stream(files[static_cast<std::size_t>(position.file)].path, std::ios::binary);
  std::uint32_t crc = 0;
  std::vector<char> piece;
  for (std::int64_t left = position.offset; left > 0; left -= std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min(left, std::int64_t{1} << 20)));
    if (!stream.read(piece.data(), std::ssize(piece))) return false;
    crc = io::crc32_of(std::span<const char>(piece), crc);
  }
  return crc == position.checksum;
}

DocumentReader::DocumentReader(std::span<const InputFile> files, InputPosition start)
    : files_(files), position_(start) {}

std::optional<std::string> DocumentReader::next() {
  while (position_.file < std::ssize(files_)) {
    const InputFile& file = files_[static_cast<std::size_t>(position_.file)];
    if (file.path.extension() != ".jsonl") {
      ++position_.file;
      return io::read_text(file.path);
    }
    if (std::optional<std::string> text = next_record(file)) return text;
    position_ = {.file = position_.file + 1};
  }
  return std::nullopt;
}

std::optional<std::string> DocumentReader::next_record(const InputFile& file) {
  if (!records_.is_open()) {
    records_.open(file.path, std::ios::binary);
    records_.seekg(position_.offset);
    require(records_.good(), "cannot open '{}': check that it is still there and may be read",
            file.path.string());
  }
  std::string line;
  while (std::getline(records_, line)) {
    const std::int64_t start = position_.offset;
    if (!records_.eof()) line += '\n';
    position_.offset += std::ssize(line);
    position_.checksum = io::crc32_of(std::span<const char>(line), position_.checksum);
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    require(
        record.is_object() && record.contains("text") && record["text"].is_string(),
        "'{}': the line at byte {} is no JSON object with a string \"text\": correct or delete it, and pack "
        "again: that goes on behind the last shard",
        file.path.string(), start);
    return record["text"].get<std::string>();
  }
  require(!records_.bad(), "cannot read '{}': check the file system", file.path.string());
  records_.close();
  records_.clear();
  return std::nullopt;
}

}  // namespace annulus::data
