#include <annulus/training/data/packer.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"
#include "chat_template.hpp"
#include "document_encoder.hpp"
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

/// Threads that encode at the same time.
int encoding_threads(const PackOptions& options) {
  const int most = options.tokenizer->threads();
  const int wanted = options.threads > 0
                         ? options.threads
                         : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return most > 0 ? std::min(most, wanted) : wanted;
}

/// Runs `task`, which may throw, beside this thread, or when its result is asked for where there is one
/// thread.
template <class Task>
auto start(int threads, Task task) {
  return std::async(threads > 1 ? std::launch::async : std::launch::deferred, std::move(task));
}

/// Collects documents until a shard is full, writes it, and records it in the manifest.
class ShardFiller {
 public:
  ShardFiller(const PackOptions& options, std::span<const TextInput> files, bool masked,
              PackManifest& manifest)
      : options_(options),
        files_(files),
        masked_(masked),
        manifest_(manifest),
        tokens_(options.output / PackManifest::shard_name(0)) {}

  /// Adds a document that came from `origin`.
  void add(const EncodedDocument& document, const std::string& origin) {
    if (document.kind != Document::Kind::text) {
      const bool line = document.kind == Document::Kind::bad_line;
      require(!line || options_.bad_lines == BadLines::skip,
              "{}: {}: correct or delete the line, or have such lines passed over (--bad-lines skip); "
              "packing again goes on behind the last shard",
              origin, document.problem);
      ++(line ? manifest_.skipped_lines : manifest_.skipped_binary);
      options_.on_note(fmt::format("{} is passed over: {}", origin, document.problem));
      return;
    }
    if (document.ids.empty()) {
      ++manifest_.skipped_empty;
      return;
    }
    begin();
    append(document.ids, document.raw.start);
    end(document.raw.next);
  }

  /// A document is added by its parts.
  void begin() { start_ = tokens_.size(); }
  /// `position` is where the document starts in the inputs.
  void append(std::span<const std::int32_t> ids, const InputPosition& position) {
    tokens_.end().insert(tokens_.end().end(), ids.begin(), ids.end());
    make_room(position);
  }
  /// The ids that were appended are a document; `next` is where the one behind it starts.
  void end(const InputPosition& next) {
    documents_.push_back(start_);
    if (std::ssize(documents_) == max_documents) flush(next);
  }

  /// Writes what has been collected; `next` is where the first document behind it starts.
  void flush(const InputPosition& next) {
    if (!documents_.empty()) write(tokens_.size(), next);
  }

  /// The manifest says that all before `next` is packed.
  void come_to(const InputPosition& next) {
    while (fingerprint_.files() < next.file)
      fingerprint_.add(files_[static_cast<std::size_t>(fingerprint_.files())]);
    manifest_.next = next;
    manifest_.inputs = fingerprint_.text();
  }

 private:
  /// Writes the documents before the one that is being added when they leave it no room.
  void make_room(const InputPosition& position) {
    if (tokens_.size() > options_.shard_tokens && !documents_.empty()) write(start_, position);
    tokens_.settle();
  }

  void write(std::int64_t tokens, const InputPosition& next) {
    const std::int64_t number = std::ssize(manifest_.shards);
    const std::string name = PackManifest::shard_name(number);
    std::vector<std::int32_t> ids;
    const auto read = [&](std::int64_t start, std::span<std::int32_t> out) {
      tokens_.read(start, out);
      for (std::int32_t& id : out) id = id < 0 ? not_counted(id) : id;
    };
    ShardSource<std::uint8_t> mask;
    if (masked_)
      mask = [&](std::int64_t start, std::span<std::uint8_t> out) {
        ids.resize(out.size());
        tokens_.read(start, ids);
        std::ranges::transform(ids, out.begin(), [](std::int32_t id) { return id < 0 ? 0 : 1; });
      };
    const ShardHeader header =
        write_shard(options_.output / name, *options_.tokenizer, tokens, read, documents_, mask);
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
  bool masked_;  // shards say which tokens count
  PackManifest& manifest_;
  InputFingerprint fingerprint_;
  ShardTokens tokens_;
  std::vector<std::int64_t> documents_;  // where they start in it
  std::int64_t start_ = 0;               // of the document that is being added
};

/// Reads documents, has several threads encode them, and hands them to the filler in the order in which they
/// stand in the inputs.
class Packing {
 public:
  /// `tell` is told where reading is: a document, and bytes of its file that are left.
  Packing(DocumentReader& reader, const DocumentEncoder& encoder, int threads, ShardFiller& filler,
          std::function<void(const InputPosition&, std::int64_t)> tell)
      : reader_(reader), encoder_(encoder), threads_(threads), filler_(filler), tell_(std::move(tell)) {}

  void run() {
    const std::size_t most = threads_ > 1 ? static_cast<std::size_t>(threads_) + 1 : 1;
    for (std::optional<RawDocument> long_one; !ended_;) {
      while (!ended_ && !long_one && under_way_.size() < most) read_batch(long_one);
      while (!under_way_.empty() && (ended_ || long_one || under_way_.size() == most)) take_batch();
      if (long_one) add_long(*std::exchange(long_one, std::nullopt));
    }
  }

 private:
  using Batch = std::vector<EncodedDocument>;

  /// A long document is left to whoever calls: the reader has only its beginning.
  void read_batch(std::optional<RawDocument>& long_one) {
    constexpr std::size_t batch_bytes = std::size_t{1} << 20;
    std::vector<RawDocument> documents;
    for (std::size_t bytes = 0; bytes < batch_bytes;) {
      std::optional<RawDocument> document = reader_.next();
      ended_ = !document;
      if (ended_) break;
      if (document->more) {
        long_one = std::move(document);
        break;
      }
      bytes += document->bytes.size() + sizeof(RawDocument);
      documents.push_back(std::move(*document));
    }
    if (documents.empty()) return;
    under_way_.push_back(start(threads_, [this, documents = std::move(documents)]() mutable {
      Batch batch;
      for (RawDocument& document : documents) batch.push_back(encode(std::move(document)));
      return batch;
    }));
  }

  /// Errors of `use` name where the document comes from.
  template <class Use>
  auto in_document(const RawDocument& document, const Use& use) const {
    try {
      return use();
    } catch (const Error& error) {
      fail("{}: {}", reader_.origin(document), error.what());
    }
  }

  EncodedDocument encode(RawDocument document) const {
    RawDocument where;
    where.start = document.start;
    where.line = document.line;
    return in_document(where, [&] { return encoder_(std::move(document)); });
  }

  void take_batch() {
    const Batch batch = under_way_.front().get();
    under_way_.pop_front();
    for (const EncodedDocument& document : batch) {
      filler_.add(document, reader_.origin(document.raw));
      tell_(document.raw.start, document.raw.unread);
    }
  }

  /// Reads the document part by part, as many parts at once as there are threads.
  void add_long(const RawDocument& document) {
    std::string text = document.bytes;
    std::size_t at = 0, done = 0;  // cut: of `text`, of all
    bool more = true;
    const auto rest = [&](std::size_t bytes) {
      while (more && text.size() - at <= bytes) {
        text.erase(0, std::exchange(at, 0));
        more = reader_.next_part(text);
      }
      return std::string_view(text).substr(at);
    };
    filler_.begin();
    for (bool ended = false; !ended;) {
      std::deque<std::future<std::vector<std::int32_t>>> parts;
      while (!ended && std::ssize(parts) < threads_) {
        const TextCut cut = in_document(document, [&] { return encoder_.next_cut(rest, done); });
        std::string part(rest(0).substr(0, cut.end));
        at += cut.next;
        done += cut.next;
        ended = !more && at == text.size();
        parts.push_back(start(threads_, [this, &document, part = std::move(part)] {
          std::vector<std::int32_t> ids;
          in_document(document, [&] { encoder_.encode(part, ids); });
          return ids;
        }));
      }
      for (; !parts.empty(); parts.pop_front()) filler_.append(parts.front().get(), document.start);
      tell_(document.start, reader_.part_unread());
    }
    const std::int32_t end = encoder_.end_of_document();
    filler_.append(std::span(&end, 1), document.start);
    filler_.end(document.next);
  }

  DocumentReader& reader_;
  const DocumentEncoder& encoder_;
  int threads_;
  ShardFiller& filler_;
  std::function<void(const InputPosition&, std::int64_t)> tell_;
  std::deque<std::future<Batch>> under_way_;
  bool ended_ = false;
};

/// Counts the shards, some at a time.
double entropy_of(const PackManifest& manifest, const fs::path& folder, int threads) {
  TokenHistogram all;
  std::deque<std::future<TokenHistogram>> under_way;
  const auto take = [&] {
    all.add(under_way.front().get());
    under_way.pop_front();
  };
  for (const PackedShard& shard : manifest.shards) {
    if (std::ssize(under_way) == threads) take();
    under_way.push_back(start(threads, [path = folder / shard.file] {
      TokenHistogram histogram;
      count_tokens(TokenShard::open(path), histogram);
      return histogram;
    }));
  }
  while (!under_way.empty()) take();
  return all.entropy();
}

}  // namespace

PackSummary pack(PackOptions options) {
  require(options.tokenizer != nullptr, "pack needs a tokenizer");
  require(options.shard_tokens > 0, "--shard-tokens is {}: a shard has at least one token",
          options.shard_tokens);
  require(options.threads >= 0, "--threads is {}: give a number of threads, or 0 for all cores",
          options.threads);
  std::optional<ChatTemplate> chat;
  if (!options.chat_template.empty()) chat = ChatTemplate::read(options.chat_template);
  for (std::string& extension : options.extensions)
    if (!extension.empty() && extension.front() != '.') extension.insert(0, ".");
  const int threads = encoding_threads(options);
  const std::vector<TextInput> files = find_inputs(options);
  make_folder(options.output);
  // Where the file system has no locks, packing goes on without.
  const io::FolderLock lock(options.output,
                            {.file = "pack.lock",
                             .in_use = fmt::format("another annulus-tokens pack is writing to '{}' (it holds "
                                                   "pack.lock): wait for it, or choose another folder",
                                                   options.output.string())});

  PackManifest manifest;
  manifest.tokenizer = options.tokenizer->identity();
  manifest.tokenizer_settings = options.tokenizer_settings;
  if (chat)
    manifest.tokenizer_settings += fmt::format(
        "{}chat template {}", manifest.tokenizer_settings.empty() ? "" : ", ", chat->fingerprint());
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
    DocumentReader reader(files, manifest.next, options.bad_lines, options.on_note, chat.has_value());
    std::vector<std::int64_t> ends;  // of files that lie one behind the other
    std::int64_t bytes = 0;
    for (const TextInput& file : files) ends.push_back(bytes += static_cast<std::int64_t>(file.bytes));
    const std::int64_t first =
        manifest.next.file == 0 ? 0 : ends[static_cast<std::size_t>(manifest.next.file) - 1];
    const auto tell = [&](const InputPosition& document, std::int64_t unread) {
      options.on_read(
          std::max<std::int64_t>(ends[static_cast<std::size_t>(document.file)] - unread - first, 0),
          bytes - first);
    };
    ShardFiller filler(options, files, chat.has_value(), manifest);
    const DocumentEncoder encoder(*options.tokenizer, chat ? &*chat : nullptr);
    Packing(reader, encoder, threads, filler, tell).run();
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
    manifest.unigram_entropy = entropy_of(manifest, options.output, threads);
    manifest.complete = true;
    manifest.write(options.output);
  }
  PackSummary summary = summary_of(manifest);
  summary.resumed_shards = resumed;
  summary.was_complete = was_complete;
  return summary;
}

}  // namespace annulus::data
