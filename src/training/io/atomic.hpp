#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/file.hpp"
#include "base/system/descriptor.hpp"

namespace annulus::io {

/// Replaces the file `path` in one step: calls `write` with the name of a new, empty file beside it
/// ("path.tmp-" and 32 random digits), brings what `write` left in it to the disk (fsync), renames it to
/// `path` and brings the folder to the disk. Readers see the old file or the new one, never a part, even when
/// the machine stops in between. When anything fails the file beside is removed, `path` stays what it was and
/// the exception goes on (Error that names the path). What a symbolic link points to is replaced, the link
/// stays; with Links::refuse, for names that the program chooses, a link is an Error. Throws Error when
/// `path` is there and no regular file: a device such as /dev/null would be gone.
void write_atomically(const std::filesystem::path& path,
                      const std::function<void(const std::filesystem::path& temporary)>& write,
                      Links links = Links::follow);

/// Throws the Error that write_atomically would throw for a folder that is missing or must not be written and
/// for a `path` that is no file: before a long computation rather than behind it. Leaves nothing.
void require_writable(const std::filesystem::path& path);

/// An empty file that is written in any order, in place of one of that name; of no other kind than a file.
Descriptor new_file(const std::filesystem::path& path);

/// write_atomically with the text as the whole contents.
void write_text_atomically(const std::filesystem::path& path, std::string_view text,
                           Links links = Links::follow);

/// Writes all of `bytes` from byte `at` of a file on; false (with errno set) when that is not possible.
bool write_at(int descriptor, std::uint64_t at, std::span<const std::byte> bytes);

/// "path.tmp-" and 32 random digits, which cannot be guessed: what becomes `path` when it is complete.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Whether `name` is of exactly the form that temporary_name gives the file or folder named `of`. What a
/// killed process has left is known by it, and nothing else may be removed as such.
bool is_temporary_name(std::string_view name, std::string_view of);

/// Gives the folder `from` the name `to`, at which nothing stands, in one step: brings the list of its files
/// to the disk before and that of the folder around it behind. Throws Error that names the path.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// Appends `record` to an open file in one write. Throws Error that names `path` when it cannot be written
/// (disk full); the file then ends with the last complete record.
void append_record(int descriptor, const std::string& path, std::string_view record);

using annulus::read_text;

}  // namespace annulus::io
