#include "inputs.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/text.hpp"
#include "json_record.hpp"
#include "training/io/crc32.hpp"

namespace annulus::data {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// What the operating system answered, with the path that it was asked about.
void require_input(const std::error_code& error, const fs::path& path) {
  require(!error,
          "cannot read the input '{}' ({}): check its permissions and those of its folder, or leave it out",
          path.string(), error.message());
}

TextInput describe(const fs::path& path, std::string key) {
  std::error_code error;
  TextInput file{path, std::move(key), fs::file_size(path, error), 0};
  require_input(error, path);
  file.modified = static_cast<std::int64_t>(fs::last_write_time(path, error).time_since_epoch().count());
  require_input(error, path);
  return file;
}

void require_outside(const fs::path& output, const fs::path& input) {
  std::error_code error;
  const fs::path outer = fs::canonical(input, error);
  require_input(error, input);
  const fs::path inner = fs::weakly_canonical(fs::absolute(output, error), error);
  if (error) return;  // make_folder says what is wrong with it
  const auto parted = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  require(parted.first != outer.end(),
          "the output folder '{}' lies inside the input '{}', which would make the shards input: choose a "
          "folder outside",
          output.string(), input.string());
}

std::string lower(std::string extension) {
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

/// Collects the files of inputs, and what else there is.
class Finder {
 public:
  explicit Finder(const PackOptions& options) : options_(options) {
    for (const std::string& extension : options.extensions) extensions_.push_back(lower(extension));
  }

  void add(const fs::path& input) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    require(status.type() != fs::file_type::not_found, "the input '{}' does not exist: check the path",
            input.string());
    require_input(error, input);
    if (!fs::is_directory(status)) {
      require(fs::is_regular_file(status), "the input '{}' is neither a file nor a folder: leave it out",
              input.string());
      take(input, input.filename().string());
      return;
    }
    const auto first = std::ssize(files_);
    enter(input, "");
    std::sort(files_.begin() + first, files_.end(),
              [](const TextInput& a, const TextInput& b) { return a.key < b.key; });
  }

  std::vector<TextInput> take() {
    if (links_ > 0)
      options_.on_note(
          fmt::format("{} links inside of the inputs are passed over, '{}' the first: --follow-links reads "
                      "what they lead to",
                      links_, first_link_));
    if (others_ > 0)
      options_.on_note(
          fmt::format("{} devices, pipes and the like inside of the inputs are passed over, '{}' the first",
                      others_, first_other_));
    require(
        !files_.empty(), "the inputs hold no files{}: check the paths{}",
        options_.extensions.empty() ? "" : found(),
        links_ > 0 ? fmt::format(", or have the {} links in them followed (--follow-links)", links_) : "");
    return std::move(files_);
  }

 private:
  /// " with the extensions .txt; there are .md (3), no extension (1)"
  std::string found() const {
    std::string text = fmt::format(" with the extensions {}", fmt::join(options_.extensions, ","));
    const char* before = "; there are ";
    for (const auto& [extension, count] : passed_) {
      text += fmt::format("{}{} ({})", std::exchange(before, ", "),
                          extension.empty() ? "no extension" : extension, count);
      if (text.size() > 200) return text + ", …";
    }
    return text;
  }

  void take(const fs::path& path, std::string key) {
    TextInput file = describe(path, std::move(key));
    if (lower(fs::path(file.key).extension().string()) == ".parquet") {
      require(options_.parquet_reader >= 0,
              "'{}' is a Parquet file, which pack_tokenizer_json.py reads and this program does not: pack "
              "with that script, make JSON lines of it, "
              "or take files of other kinds from folders alone (--extensions)",
              path.string());
      file.reader = options_.parquet_reader;
    }
    files_.push_back(std::move(file));
  }

  void enter(const fs::path& folder, const std::string& key) {
    std::error_code error;
    if (key.empty() || options_.follow_links) {
      require_outside(options_.output, folder);
      const fs::path place = fs::canonical(folder, error);
      require_input(error, folder);
      if (std::ranges::count(around_, place) > 0) {
        options_.on_note(
            fmt::format("'{}' leads back to a folder around it, and is passed over", folder.string()));
        return;
      }
      around_.push_back(place);
    }
    auto entry = fs::directory_iterator(folder, error);
    require_input(error, folder);
    for (; entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.front() != '.') add_found(entry->path(), key + name);
    }
    require_input(error, folder);
    if (key.empty() || options_.follow_links) around_.pop_back();
  }

  void add_found(const fs::path& path, const std::string& key) {
    std::error_code error;
    fs::file_status status = fs::symlink_status(path, error);
    require_input(error, path);
    if (fs::is_symlink(status) && !options_.follow_links) {
      if (links_++ == 0) first_link_ = path.string();
      return;
    }
    if (fs::is_symlink(status)) {
      status = fs::status(path, error);
      if (error) {
        options_.on_note(fmt::format("the link '{}' is passed over: {}", path.string(), error.message()));
        return;
      }
    }
    if (fs::is_directory(status)) {
      enter(path, key + "/");
    } else if (!fs::is_regular_file(status)) {
      if (others_++ == 0) first_other_ = path.string();
    } else if (const std::string extension = path.extension().string();
               extensions_.empty() || std::ranges::count(extensions_, lower(extension)) > 0) {
      take(path, key);
    } else {
      ++passed_[extension];
    }
  }

  const PackOptions& options_;
  std::vector<std::string> extensions_;  // in lower case
  std::vector<TextInput> files_;
  std::vector<fs::path> around_;  // the folders that are being listed, where links may lead back
  std::map<std::string, std::int64_t> passed_;  // files of other extensions
  std::int64_t links_ = 0, others_ = 0;
  std::string first_link_, first_other_;
};

constexpr FileKind text_file{"a file of text", ~std::uint64_t{0}};

/// Appends what stands in a file from `at` on, a piece at most; false at its end.
bool append_bytes(const InputFile& file, std::uint64_t at, std::string& text) {
  const std::size_t size = text.size();
  text.resize(size + piece_bytes);
  text.resize(size + file.read_at(at, std::as_writable_bytes(std::span(text).subspan(size))));
  return text.size() > size;
}

/// Whether records of a file are packed by gzip, which its name says.
bool is_packed(const TextInput& file) {
  return lower(fs::path(file.key).extension().string()) == ".gz";
}

/// The extension of a name, without that of gzip behind it.
std::string unpacked_extension(const TextInput& file) {
  const fs::path path(file.key);
  return lower((is_packed(file) ? path.stem() : path).extension().string());
}

bool is_blank(std::string_view line) {
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
  return line.find_first_not_of(" \t\r\n") == line.npos;
}

}  // namespace

std::vector<TextInput> find_inputs(const PackOptions& options) {
  require(!options.inputs.empty(), "nothing to pack: name files or folders");
  Finder finder(options);
  for (const fs::path& input : options.inputs) finder.add(input);
  return finder.take();
}

void InputFingerprint::add(const TextInput& file) {
  const std::string line = fmt::format("{}\n{}\n{}\n", file.key, file.bytes, file.modified);
  crc_ = io::crc32_of(std::span<const char>(line), crc_);
  ++files_;
}

std::string InputFingerprint::text() const {
  return fmt::format("{} files, crc32:{:08x}", files_, crc_);
}

bool begins_as_before(std::span<const TextInput> files, const InputPosition& position) {
  if (position.offset == 0) return position.file <= std::ssize(files);
  if (position.file >= std::ssize(files)) return false;
  RecordFile file(files[static_cast<std::size_t>(position.file)]);
  std::uint32_t crc = 0;
  std::string piece;
  for (std::int64_t at = 0; at < position.offset; at += std::ssize(piece)) {
    piece.clear();
    if (!file.append_piece(piece)) return false;
    piece.resize(std::min(piece.size(), static_cast<std::size_t>(position.offset - at)));
    crc = io::crc32_of(std::span<const char>(piece), crc);
  }
  return crc == position.checksum;
}

RecordFile::RecordFile(const TextInput& file) {
  if (file.reader < 0) {
    file_ = std::make_unique<InputFile>(file.path, text_file);
    if (is_packed(file)) unpacked_.emplace(*file_);
    return;
  }
  process_.emplace(file.reader, fmt::format("the process that reads '{}'", file.path.string()));
  const std::uint64_t size = file.path.native().size();
  process_->send(std::span(&size, 1));
  process_->send(std::span(file.path.native()));
}

bool RecordFile::append_served(std::string& text) {
  constexpr std::uint64_t next_piece = 0;
  process_->send(std::span(&next_piece, 1));
  std::array<std::uint64_t, 3> answer{};  // failed; bytes of the file that are unread; bytes that follow
  process_->receive(std::span(answer));
  require(answer[2] <= std::uint64_t{1} << 26, "the process that reads Parquet answers with {} bytes at once",
          answer[2]);
  std::string piece(answer[2], '\0');
  process_->receive(std::span(piece));
  require(answer[0] == 0, "{}", piece);
  unread_ = static_cast<std::int64_t>(answer[1]);
  text += piece;
  return !piece.empty();
}

bool RecordFile::append_piece(std::string& text) {
  if (process_) return append_served(text);
  if (unpacked_) return unpacked_->append(text, piece_bytes);
  const std::size_t before = text.size();
  const bool more = append_bytes(*file_, read_, text);
  read_ += text.size() - before;
  return more;
}

std::int64_t RecordFile::unread() const {
  if (process_) return unread_;
  const std::uint64_t read = unpacked_ ? unpacked_->read() : read_;
  return static_cast<std::int64_t>(file_->size() - std::min(read, file_->size()));
}

Document document_of(RawDocument& raw, const ChatTemplate* chat) {
  using Kind = Document::Kind;
  const auto problem = [](Kind kind, std::string text) {
    return Document{.kind = kind, .parts = {}, .problem = std::move(text)};
  };
  if (!raw.problem.empty()) return problem(Kind::binary, raw.problem);
  if (!raw.record) return {.kind = Kind::text, .parts = {{std::move(raw.bytes), true}}, .problem = {}};
  if (std::ssize(raw.bytes) > longest_line)
    return problem(Kind::bad_line, fmt::format("it has more than {} bytes", longest_line));
  if (chat != nullptr) {
    ChatTemplate::Conversation conversation = chat->conversation_of(raw.bytes);
    if (!conversation.problem.empty()) return problem(Kind::bad_line, std::move(conversation.problem));
    return {.kind = Kind::text, .parts = std::move(conversation.parts), .problem = {}};
  }
  JsonRecord record = parse_record(raw.bytes);
  if (!record.problem.empty()) return problem(Kind::bad_line, std::move(record.problem));
  if (!is_text(record.text)) return problem(Kind::binary, "a NUL in its text");
  return {.kind = Kind::text, .parts = {{std::move(record.text), true}}, .problem = {}};
}

DocumentReader::DocumentReader(std::span<const TextInput> files, InputPosition start, BadLines bad_lines,
                               std::function<void(const std::string&)> note, bool records_alone)
    : files_(files),
      position_(start),
      bad_lines_(bad_lines),
      note_(std::move(note)),
      records_alone_(records_alone) {}

std::string DocumentReader::origin(const RawDocument& document) const {
  const TextInput& file = files_[static_cast<std::size_t>(document.start.file)];
  if (document.line == 0) return fmt::format("'{}'", file.path.string());
  return fmt::format("'{}', {} {}", file.path.string(), file.reader < 0 ? "line" : "row", document.line);
}

std::optional<RawDocument> DocumentReader::next() {
  while (position_.file < std::ssize(files_)) {
    const TextInput& file = files_[static_cast<std::size_t>(position_.file)];
    if (!records_ && !is_json_lines(file)) {
      require(!records_alone_,
              "'{}' is no file of JSON lines (*.jsonl, *.ndjson, or these with .gz) or Parquet, in which "
              "conversations are: leave it out, or take some files from folders alone (--extensions jsonl)",
              file.path.string());
      const InputPosition start = position_;
      position_ = {.file = position_.file + 1};
      RawDocument document = read_whole(file);
      document.start = start;
      document.next = position_;
      return document;
    }
    if (std::optional<RawDocument> document = next_record()) return document;
    position_ = {.file = position_.file + 1};
  }
  return std::nullopt;
}

TextReader::TextReader(const fs::path& path, std::int64_t start) : file_(path, text_file), position_(start) {}

bool TextReader::append_piece(std::string& text) {
  const std::uint64_t at = static_cast<std::uint64_t>(position_) + begun_.size();
  const bool more = append_bytes(file_, at, begun_);
  const std::size_t good = text_prefix(begun_);
  text.append(begun_, 0, good);
  begun_.erase(0, good);
  position_ += static_cast<std::int64_t>(good);
  // A character of up to four bytes may go on in the next piece.
  if (begun_.size() > (more ? 3 : 0))
    problem_ = fmt::format("{} at byte {}", begun_.front() == 0 ? "a NUL" : "not UTF-8", position_ + 1);
  return more && problem_.empty();
}

RawDocument DocumentReader::read_whole(const TextInput& file) {
  TextReader reader(file.path);
  RawDocument document;
  while (reader.append_piece(document.bytes)) {
    if (document.bytes.size() <= piece_bytes) continue;
    document.more = true;  // all of it is looked at first: nothing of a file that is no text is packed
    document.bytes.clear();
  }
  document.problem = reader.problem();
  if (!document.problem.empty()) document.more = false;
  if (document.more || !document.problem.empty()) document.bytes.clear();
  if (document.more) {
    rest_.emplace(file.path);
    rest_end_ = reader.position();
  }
  return document;
}

bool DocumentReader::next_part(std::string& text) {
  if (rest_->append_piece(text)) return true;
  require(rest_->problem().empty() && rest_->position() == rest_end_,
          "'{}' changes while it is packed: pack again when it is complete", rest_->path());
  return false;
}

bool DocumentReader::is_json_lines(const TextInput& file) {
  const std::string extension = unpacked_extension(file);
  if (extension == ".jsonl" || extension == ".ndjson" || file.reader >= 0) {
    open_records(file);
    return true;
  }
  if (extension != ".json" || is_packed(file)) return false;
  open_records(file);
  if (position_.offset > 0) return true;  // it was before
  std::string line;
  while (is_blank(line) && next_line(line)) continue;
  const bool lines = parse_record(line).problem.empty();
  if (lines) note_(fmt::format("'{}' is read as JSON lines: its first line is a record", file.path.string()));
  if (!lines) {
    line.append(piece_, std::min(at_, piece_.size()));
    const std::string_view front = std::string_view(line).substr(0, piece_bytes);
    const bool array = begins_with_record(front, 1);
    if (array || begins_with_record(front, 0))
      note_(
          fmt::format("'{}' is {} and packed as one document, with its keys and brackets: write one record a "
                      "line (jq -c {}) to have each a document of its own",
                      file.path.string(), array ? "an array of records" : "a record over several lines",
                      array ? "'.[]'" : "."));
  }
  position_ = {.file = position_.file};
  records_.reset();
  if (lines) open_records(file);
  return lines;
}

void DocumentReader::open_records(const TextInput& file) {
  records_.emplace(file);
  piece_.clear();
  at_ = 0;
  line_ = 0;
  const auto start = static_cast<std::size_t>(position_.offset);
  for (std::size_t before = 0; before < start;) {
    piece_.clear();
    if (!records_->append_piece(piece_)) break;
    at_ = std::min(piece_.size(), start - before);
    line_ += std::ranges::count(std::string_view(piece_).substr(0, at_), '\n');
    before += at_;
  }
}

/// Gives the line that comes next with its end; false at the end of the file. A line that can be no record,
/// having a NUL or more than longest_line bytes, is cut behind the piece that shows it.
bool DocumentReader::next_line(std::string& line) {
  line.clear();
  for (bool bad = false;;) {
    if (at_ == piece_.size()) {
      piece_.clear();
      at_ = 0;
      if (!records_->append_piece(piece_)) break;
    }
    const std::string_view rest = std::string_view(piece_).substr(at_);
    const std::size_t end = rest.find('\n');
    const std::string_view part = rest.substr(0, end == rest.npos ? rest.size() : end + 1);
    if (!bad) line.append(part);
    bad = bad || part.find('\0') != part.npos || std::ssize(line) > longest_line;
    at_ += part.size();
    position_.offset += std::ssize(part);
    position_.checksum = io::crc32_of(std::span<const char>(part), position_.checksum);
    if (end != rest.npos || (bad && bad_lines_ == BadLines::error)) break;
  }
  if (line.empty()) return false;
  ++line_;
  return true;
}

std::optional<RawDocument> DocumentReader::next_record() {
  RawDocument document{.bytes = {}, .record = true, .problem = {}, .start = position_, .next = {}};
  for (; next_line(document.bytes); document.start = position_) {
    if (is_blank(document.bytes)) continue;
    document.next = position_;
    document.line = line_;
    document.unread = records_->unread() + std::ssize(piece_) - static_cast<std::int64_t>(at_);
    return document;
  }
  records_.reset();
  return std::nullopt;
}

}  // namespace annulus::data
