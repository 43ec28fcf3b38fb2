#include "training/checkpoint/kept_files.hpp"

#include <span>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/checkpoint/checksum_line.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/io/new_folder.hpp"

namespace annulus::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kept_format = "annulus-model-files";
constexpr const char* kept_advice =
    "copy the folder again, or remove it, which leaves exports without tokenizer";

constexpr FileKind kept_manifest{"the list of a model's files", kinds::mib};
constexpr FileKind kept_file{"a file of a model", 256 * kinds::mib};

/// Where a run's folder `around` keeps files; empty where it has none.
fs::path kept_in(const fs::path& around) {
  std::error_code error;
  const fs::path folder = around / kept_files_folder;
  return fs::exists(folder / kept_files_manifest, error) ? folder : fs::path();
}

}  // namespace

fs::path kept_files_of(const fs::path& checkpoint) {
  if (const fs::path own = kept_in(checkpoint); !own.empty()) return own;
  std::error_code error;
  const fs::path folder = fs::canonical(checkpoint, error).parent_path();
  return !error && folder.filename() == "checkpoints" ? kept_in(folder.parent_path()) : fs::path();
}

KeptFiles read_kept_files(const fs::path& folder) {
  const fs::path manifest = folder / kept_files_manifest;
  const std::string text = read_text(manifest, kept_manifest, Links::refuse);
  require(has_checksum_line(text),
          "'{}' is damaged or truncated (its CRC-32 is not the one in its first line): {}", manifest.string(),
          kept_advice);
  KeptFiles kept;
  try {
    const json all = io::parse_json(text, manifest.string());
    require(all.at("format") == kept_format && all.at("version") == 1,
            "'{}' is of another version of Annulus: use the program that wrote it", manifest.string());
    kept.vocabulary = all.at("vocabulary").get<std::int64_t>();
    for (const json& file : all.at("files")) {
      const auto name = file.at("name").get<std::string>();
      require(is_plain_name(name) && name[0] != '.', "'{}' names a file outside of its folder: {}",
              manifest.string(), kept_advice);
      std::string contents = read_text(folder / name, kept_file, Links::refuse);
      const auto bytes = file.at("bytes").get<std::uintmax_t>();
      require(contents.size() == bytes, "'{}' has {} bytes, {} in {}: it is damaged; {}",
              (folder / name).string(), contents.size(), bytes, kept_files_manifest, kept_advice);
      require(io::crc32_of(std::span<const char>(contents)) == file.at("crc32").get<std::uint32_t>(),
              "'{}' is damaged (its CRC-32 is not the one in {}): {}", (folder / name).string(),
              kept_files_manifest, kept_advice);
      kept.contents.emplace(name, std::move(contents));
    }
  } catch (const json::exception&) {
    fail("'{}' does not say what files are kept: {}", manifest.string(), kept_advice);
  }
  return kept;
}

void write_kept_files(const fs::path& around, const KeptFiles& files) {
  const fs::path folder = around / kept_files_folder;
  std::error_code error;
  if (!kept_in(around).empty()) {
    const fs::path aside = io::temporary_name(folder);
    fs::rename(folder, aside, error);
    require(!error, "'{}' cannot be replaced ({}): check its permissions", folder.string(), error.message());
    fs::remove_all(aside, error);
  }
  if (files.contents.empty()) return;
  io::NewFolder made(folder);
  json list = json::array();
  for (const auto& [name, contents] : files.contents) {
    io::write_text_atomically(made.temporary() / name, contents);
    list.push_back({{"name", name},
                    {"bytes", contents.size()},
                    {"crc32", io::crc32_of(std::span<const char>(contents))}});
  }
  const json all{{"format", kept_format}, {"version", 1}, {"vocabulary", files.vocabulary}, {"files", list}};
  io::write_text_atomically(made.temporary() / kept_files_manifest, with_checksum_line(all.dump()));
  made.commit();
}

}  // namespace annulus::checkpoint
