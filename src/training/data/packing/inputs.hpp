#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <annulus/training/data/packer.hpp>

#include "base/file.hpp"
#include "chat_template.hpp"
#include "serving_process.hpp"
#include "training/io/gzip.hpp"

namespace annulus::data {

/// A file to take documents from.
struct TextInput {
  std::filesystem::path path;
  std::string key;  ///< path inside the input it came from: the same wherever that input lies
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  ///< time of the last change, in the file system's own units
  int reader = -1;            ///< socket of the process that reads it (PackOptions::parquet_reader)
};

/// The files of options.inputs: files as they are, folders walked in sorted order (by the bytes of the path),
/// without names that start with a dot, and only with one of options.extensions when there are any. Links
/// that are found in folders are passed over, and options.on_note is told so, unless options.follow_links.
/// Throws Error when an input is missing or cannot be listed, nothing is found, or options.output lies inside
/// an input.
std::vector<TextInput> find_inputs(const PackOptions& options);

/// Tells the first files of a list apart: changes when one of them, its size or its time of change does.
class InputFingerprint {
 public:
  void add(const TextInput& file);
  std::int64_t files() const { return files_; }
  std::string text() const;

 private:
  std::int64_t files_ = 0;
  std::uint32_t crc_ = 0;
};

/// Where the next document starts.
struct InputPosition {
  std::int64_t file = 0;       ///< index of the file
  std::int64_t offset = 0;     ///< byte inside it: 0, or the start of a line of a JSON-lines file
  std::uint32_t checksum = 0;  ///< CRC-32 of the bytes of the file before that
  friend bool operator==(const InputPosition&, const InputPosition&) = default;
};

/// The file at the position is there and begins with the bytes that were read from it.
bool begins_as_before(std::span<const TextInput> files, const InputPosition& position);

/// A document as it lies in its file.
struct RawDocument {
  std::string bytes;        ///< text, or a line of a JSON-lines file that is still to be taken apart
  bool record = false;      ///< it is such a line
  bool more = false;        ///< a text that is longer than `bytes`: DocumentReader::next_part gives the rest
  std::string problem;      ///< of a file that is no text: "not UTF-8 at byte 3"
  InputPosition start;      ///< where it starts
  InputPosition next;       ///< where the one behind it starts
  std::int64_t line = 0;    ///< of a record, from 1
  std::int64_t unread = 0;  ///< bytes of its file that are not read yet
};

/// A document of the inputs, or what stands in the place of one.
struct Document {
  enum class Kind : std::uint8_t {
    text,     ///< `parts`, which may be empty
    binary,   ///< it holds a NUL or is not UTF-8
    bad_line  ///< a line of a JSON-lines file that is no record
  };
  Kind kind = Kind::text;
  std::vector<TextPart> parts;
  std::string problem;  ///< of the other kinds: "not UTF-8 at byte 3"
};

/// Takes a raw document apart, whose bytes it may take. `chat` null: records have a text, else a
/// conversation.
Document document_of(RawDocument& raw, const ChatTemplate* chat);

/// Reads a file that may be text.
class TextReader {
 public:
  /// From a byte on at which a character starts. Throws Error that names the file when it cannot be read.
  explicit TextReader(const std::filesystem::path& path, std::int64_t start = 0);

  /// Appends a piece of whole characters; false at the end of the file, and where it stops being text.
  bool append_piece(std::string& text);

  std::int64_t position() const { return position_; }  ///< behind the last piece
  const std::string& path() const { return file_.path(); }
  const std::string& problem() const { return problem_; }  ///< why it is no text: "not UTF-8 at byte 3"

 private:
  InputFile file_;
  std::string begun_;  // a character that goes on in the next piece
  std::int64_t position_;
  std::string problem_;
};

/// The bytes of a JSON-lines file, which may be packed by gzip or be a Parquet file of which a process makes
/// such lines.
class RecordFile {
 public:
  explicit RecordFile(const TextInput& file);

  /// Appends a piece; false at the end. Throws Error that names the file when it cannot be read or unpacked.
  bool append_piece(std::string& text);

  std::int64_t unread() const;  ///< bytes of the file

 private:
  bool append_served(std::string& text);

  std::unique_ptr<InputFile> file_;  // at a fixed place, which the unpacker knows
  std::optional<io::GzipReader> unpacked_;
  std::uint64_t read_ = 0;
  std::optional<ServingProcess> process_;  // in place of the file
  std::int64_t unread_ = 0;                // as the process says
};

/// Reads the documents of the files one by one. Memory: pieces of a file, or one line of a JSON-lines file.
class DocumentReader {
 public:
  /// `files` outlive the reader. `note` is told which files are taken for what their names do not say.
  /// `records_alone`: a file of no records is an Error that names it.
  DocumentReader(std::span<const TextInput> files, InputPosition start, BadLines bad_lines,
                 std::function<void(const std::string&)> note, bool records_alone = false);

  /// The next document; nothing at the end. Throws Error that names the file when it cannot be read.
  std::optional<RawDocument> next();

  /// Appends what comes next of a document that next() gave a part of; false at its end.
  bool next_part(std::string& text);

  /// Bytes of its file that are not read yet of that document.
  std::int64_t part_unread() const { return rest_ ? rest_end_ - rest_->position() : 0; }

  /// Where the document that next() gives next starts.
  InputPosition position() const { return position_; }

  /// Where a document came from: "'a.jsonl', line 3".
  std::string origin(const RawDocument& document) const;

 private:
  RawDocument read_whole(const TextInput& file);
  std::optional<RawDocument> next_record();
  bool is_json_lines(const TextInput& file);
  void open_records(const TextInput& file);
  bool next_line(std::string& line);

  std::span<const TextInput> files_;
  InputPosition position_;
  BadLines bad_lines_;
  std::function<void(const std::string&)> note_;
  bool records_alone_;
  std::int64_t line_ = 0;
  std::optional<TextReader> rest_;  // of a long document, which ends at rest_end_
  std::int64_t rest_end_ = 0;
  std::optional<RecordFile> records_;  // the JSON-lines file that is being read
  std::string piece_;                  // of it, read but not given out from `at_`
  std::size_t at_ = 0;
};

}  // namespace annulus::data
