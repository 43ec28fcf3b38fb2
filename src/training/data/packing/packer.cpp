#include <annulus/training/data/packer.hpp>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"
#include "inputs.hpp"
#include "manifest.hpp"
#include "training/data/shard_tokens.hpp"
#include "training/data/verify.hpp"
#include "training/io/atomic.hpp"
#include "training/io/folder_lock.hpp"

namespace annulus::data {

namespace fs = std::filesystem;

namespace {

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code ignored;
  require(fs::is_directory(folder, ignored),
          "cannot make the output folder '{}': {}; choose a folder that can be written", folder.string(),
          error ? error.message() : "there is something else of that name");
}

/// Calls `use` with the names of the files in the output folder.
void for_each_file(const fs::path& folder, const std::function<void(const std::string& name)>& use) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code gone;
    if (fs::is_regular_file(entry->symlink_status(gone))) use(entry->path().filename().string());
  }
  require(!error, "cannot list the output folder '{}': {}; check its permissions", folder.string(),
          error.message());
}

/// The number of a shard in its name; nothing in other names.
std::optional<std::int64_t> shard_number(std::string_view name) {
  std::string_view rest = name.substr(std::min(name.size(), std::string_view("tokens-").size()));
  const auto number = take_number<std::int64_t>(rest);
  return number && *number >= 0 && name == PackManifest::shard_name(*number) ? number : std::nullopt;
}

/// What a killed run left of a file that it was writing.
void remove_leftovers(const fs::path& folder) {
  std::vector<fs::path> found;
  for_each_file(folder, [&](const std::string& name) {
    const std::string_view of = std::string_view(name).substr(0, name.rfind(".tmp-"));
    if (io::is_temporary_name(name, of) && (of == PackManifest::file_name || shard_number(of)))
      found.push_back(folder / name);
  });
  for (const fs::path& path : found) {
    std::error_code error;
    fs::remove(path, error);
    require(!error, "cannot remove '{}', which a pack left that was killed: {}; check its permissions",
            path.string(), error.message());
  }
}

void require_no_strangers(const fs::path& folder) {
  for_each_file(folder, [&](const std::string& name) {
    require(!name.ends_with(".h5") || name.starts_with('.'),
            "the output folder '{}' has '{}' in it, but no pack.json: choose an empty folder",
            folder.string(), name);
  });
}

/// Makes sure that what the manifest counts as written is there, without reading tokens.
void require_shards(const PackManifest& manifest, const fs::path& folder) {
  for (const PackedShard& shard : manifest.shards) {
    const ShardHeader header = TokenShard::open(folder / shard.file).header();
    require(header.tokens == shard.tokens && header.checksum == shard.checksum,
            "'{}' is not the shard that pack.json lists: delete the folder '{}' and pack again", header.path,
            folder.string());
  }
}

PackSummary summary_of(const PackManifest& manifest) {
  PackSummary summary;
  for (const PackedShard& shard : manifest.shards) summary.shards.push_back(shard.file);
  summary.tokens = manifest.tokens();
  summary.documents = manifest.documents();
  summary.skipped_binary = manifest.skipped_binary;
  summary.skipped_empty = manifest.skipped_empty;
  summary.skipped_lines = manifest.skipped_lines;
  summary.unigram_entropy = manifest.unigram_entropy;
  return summary;
}

/// Collects documents until a shard is full, writes it, and records it in the manifest.
class ShardFiller {
 public:
  /// `tell` is told how far a long document is read.
  ShardFiller(const PackOptions& options, std::span<const TextInput> files, PackManifest& manifest,
              std::function<void(InputPosition)> tell)
      : options_(options),
        files_(files),
        manifest_(manifest),
        tell_(std::move(tell)),
        tokens_(options.output / PackManifest::shard_name(0)) {}

  /// Adds the document that the reader gave last and that starts at `position` in the inputs.
  void add(Document document, DocumentReader& reader, InputPosition position) {
    if (document.kind != Document::Kind::text) {
      const bool line = document.kind == Document::Kind::bad_line;
      ++(line ? manifest_.skipped_lines : manifest_.skipped_binary);
      options_.on_note(fmt::format("{} is passed over: {}", reader.origin(), document.problem));
      return;
    }
    if (document.text.empty() && !document.more) {
      ++manifest_.skipped_empty;
      return;
    }
    start_ = tokens_.size();
    encode(document, reader, position);
    tokens_.end().push_back(static_cast<std::int32_t>(manifest_.tokenizer.end_of_document));
    make_room(position);
    documents_.push_back(start_);
    if (std::ssize(documents_) == max_documents) flush(reader.position());
  }

  /// Writes what has been collected; `next` is where the first document behind it starts.
  void flush(InputPosition next) {
    if (!documents_.empty()) write(tokens_.size(), next);
  }

  /// The manifest says that all before `next` is packed.
  void come_to(InputPosition next) {
    while (fingerprint_.files() < next.file)
      fingerprint_.add(files_[static_cast<std::size_t>(fingerprint_.files())]);
    manifest_.next = next;
    manifest_.inputs = fingerprint_.text();
  }

 private:
  /// Encodes part by part. Where a text is cut depends on the text alone: sums of scores are rounded
  /// (docs/formats/token-shards.md).
  void encode(Document& document, DocumentReader& reader, const InputPosition& position) {
    constexpr std::size_t part_bytes = std::size_t{1} << 20;
    std::string& text = document.text;
    std::size_t at = 0, done = 0;  // encoded: of `text`, of all
    for (std::size_t part = part_bytes;;) {
      while (document.more && text.size() - at <= part) {
        text.erase(0, std::exchange(at, 0));
        document.more = reader.next_part(text);
        tell_({.file = reader.position().file - 1, .offset = reader.part_position()});
      }
      const std::string_view rest = std::string_view(text).substr(at);
      const auto cut = rest.size() <= part ? TextCut{rest.size(), rest.size()}
                                           : options_.tokenizer->last_cut(rest.substr(0, part));
      if (!cut) {
        part *= 2;
        require(
            static_cast<std::int64_t>(part) <= longest_part,
            "{}: its first {} MiB behind byte {} cannot be given to the tokenizer '{}' in parts (it knows no "
            "place where a cut keeps the ids), and are too much at once: cut the text into files or "
            "records of JSON lines, each a document",
            reader.origin(), longest_part >> 20, done, manifest_.tokenizer.name);
        continue;
      }
      try {
        options_.tokenizer->encode(rest.substr(0, cut->end), tokens_.end());
      } catch (const Error& error) {
        fail("{}: {}", reader.origin(), error.what());
      }
      make_room(position);
      if (rest.size() <= part) return;
      at += cut->next;
      done += cut->next;
      part = part_bytes;
    }
  }

  /// Writes the documents before the one that is being added when they leave it no room.
  void make_room(const InputPosition& position) {
    if (tokens_.size() > options_.shard_tokens && !documents_.empty()) write(start_, position);
    tokens_.settle();
  }

  void write(std::int64_t tokens, const InputPosition& next) {
    const std::int64_t number = std::ssize(manifest_.shards);
    const std::string name = PackManifest::shard_name(number);
    const ShardHeader header = write_shard(
        options_.output / name, *options_.tokenizer, tokens,
        [&](std::int64_t start, std::span<std::int32_t> out) { tokens_.read(start, out); }, documents_);
    manifest_.shards.push_back({name, header.tokens, header.documents, header.checksum});
    come_to(next);
    manifest_.write(options_.output);
    tokens_.erase_front(tokens);
    documents_.clear();
    start_ = 0;
    options_.on_shard(manifest_.shards.back(), number);
  }

  const PackOptions& options_;
  std::span<const TextInput> files_;
  PackManifest& manifest_;
  std::function<void(InputPosition)> tell_;
  InputFingerprint fingerprint_;
  ShardTokens tokens_;
  std::vector<std::int64_t> documents_;  // where they start in it
  std::int64_t start_ = 0;               // of the document that is being added
};

double entropy_of(const PackManifest& manifest, const fs::path& folder) {
  TokenHistogram histogram;
  for (const PackedShard& shard : manifest.shards)
    count_tokens(TokenShard::open(folder / shard.file), histogram);
  return histogram.entropy();
}

}  // namespace

PackSummary pack(PackOptions options) {
  require(options.tokenizer != nullptr, "pack needs a tokenizer");
  require(options.shard_tokens > 0, "--shard-tokens is {}: a shard has at least one token",
          options.shard_tokens);
  for (std::string& extension : options.extensions)
    if (!extension.empty() && extension.front() != '.') extension.insert(0, ".");
  const std::vector<TextInput> files = find_inputs(options);
  make_folder(options.output);
  // Where the file system has no locks, packing goes on without.
  const io::FolderLock lock(
      options.output,
      {.file = "pack.lock",
       .in_use = fmt::format("another annulus-tokens pack is writing to '{}' (it holds pack.lock): wait for "
                             "it, or choose another folder",
                             options.output.string())});

  PackManifest manifest;
  manifest.tokenizer = options.tokenizer->identity();
  manifest.tokenizer_settings = options.tokenizer_settings;
  manifest.shard_tokens = options.shard_tokens;
  manifest.extensions = options.extensions;
  manifest.inputs = InputFingerprint().text();
  const std::optional<PackManifest> earlier = PackManifest::read(options.output);
  if (earlier && !earlier->shards.empty()) {
    earlier->require_same_arguments(manifest, options.output);
    earlier->require_same_inputs(files, options.output);
    require_shards(*earlier, options.output);
    manifest = *earlier;
  } else {
    if (!earlier) require_no_strangers(options.output);
    manifest.write(options.output);  // from here on shards in the folder are ours
  }
  const std::int64_t resumed = std::ssize(manifest.shards);
  const bool was_complete = manifest.complete;
  if (!was_complete) {
    remove_leftovers(options.output);
    DocumentReader reader(files, manifest.next, options.bad_lines, options.on_note);
    std::vector<std::int64_t> begins{0};  // of files that lie one behind the other
    for (const TextInput& file : files)
      begins.push_back(begins.back() + static_cast<std::int64_t>(file.bytes));
    const auto place_of = [&](const InputPosition& position) {
      return begins[static_cast<std::size_t>(position.file)] + position.offset;
    };
    const auto tell = [&, first = place_of(manifest.next)](const InputPosition& position) {
      options.on_read(place_of(position) - first, begins.back() - first);
    };
    ShardFiller filler(options, files, manifest, tell);
    for (InputPosition start = reader.position(); auto document = reader.next(); start = reader.position()) {
      filler.add(std::move(*document), reader, start);
      tell(reader.position());
    }
    filler.flush(reader.position());
    filler.come_to(reader.position());
    if (manifest.shards.empty()) {
      std::error_code error;
      fs::remove(options.output / PackManifest::file_name, error);
      fail(
          "the inputs hold no text: {} are empty, {} hold a NUL or are not UTF-8, {} lines are bad; name "
          "other files",
          manifest.skipped_empty, manifest.skipped_binary, manifest.skipped_lines);
    }
    manifest.unigram_entropy = entropy_of(manifest, options.output);
    manifest.complete = true;
    manifest.write(options.output);
  }
  PackSummary summary = summary_of(manifest);
  summary.resumed_shards = resumed;
  summary.was_complete = was_complete;
  return summary;
}

}  // namespace annulus::data
