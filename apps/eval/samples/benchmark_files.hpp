#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus::eval {

/// A question of a benchmark's file, whose answer is one fixed text.
struct BenchmarkRecord {
  std::string task;    ///< as the benchmark names it
  std::string prompt;  ///< the answer follows, behind a space
  std::string answer;
};

/// The records of files of RULER (its JSON lines: index, input, outputs, length; newer ones have
/// answer_prefix). `paths` are files, or folders of them: TASK.jsonl or TASK/….jsonl. Throws Error naming
/// file and line, and for tasks whose answers may have any order or are free text.
std::vector<BenchmarkRecord> read_ruler(const std::vector<std::filesystem::path>& paths);

/// The records of files of InfiniteBench (JSON lines: id, context, input, answer, options), named TASK.jsonl:
/// `paths` are files, or folders of them. Throws Error naming file and line, and for tasks whose
/// answers may have any order or are free text.
std::vector<BenchmarkRecord> read_infinitebench(const std::vector<std::filesystem::path>& paths);

/// The books of PG-19: the files NUMBER.txt of `paths`, which are such files or folders of them. Throws Error
/// naming a text of another name.
std::vector<std::filesystem::path> find_pg19(const std::vector<std::filesystem::path>& paths);

}  // namespace annulus::eval
