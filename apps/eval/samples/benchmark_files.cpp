#include "eval/samples/benchmark_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string_view>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/io/json.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// A task of a benchmark, and why it has no single fixed answer; empty where it has one.
struct Task {
  std::string_view name;
  std::string_view refused = {};
  std::string_view asks = {};  // of InfiniteBench: what stands between question and answer
};

constexpr std::string_view any_order = "its answers may come in any order";
constexpr std::string_view free_text = "its answers are free text";

constexpr std::array ruler_tasks{Task{"niah_single_1"},
                                 Task{"niah_single_2"},
                                 Task{"niah_single_3"},
                                 Task{"niah_multikey_1"},
                                 Task{"niah_multikey_2"},
                                 Task{"niah_multikey_3"},
                                 Task{"niah_multivalue", any_order},
                                 Task{"niah_multiquery", any_order},
                                 Task{"vt", any_order},
                                 Task{"cwe", any_order},
                                 Task{"fwe", any_order},
                                 Task{"qa_1", free_text},
                                 Task{"qa_2", free_text}};

constexpr std::string_view of_letter = "The letter of the right answer is";
constexpr std::array infinitebench_tasks{Task{"passkey", {}, "The pass key is"},
                                         Task{"number_string", {}, "The sequence of digits is"},
                                         Task{"kv_retrieval", {}, "The value is"},
                                         Task{"math_find", {}, "The answer is"},
                                         Task{"code_run", {}, "The return value is"},
                                         Task{"longbook_choice_eng", {}, of_letter},
                                         Task{"code_debug", {}, of_letter},
                                         Task{"math_calc", "its answer is a list that counts in part"},
                                         Task{"longbook_qa_eng", free_text},
                                         Task{"longbook_qa_chn", free_text},
                                         Task{"longbook_sum_eng", free_text},
                                         Task{"longdialogue_qa_eng", free_text}};

/// A line of 1M tokens has some 5 MB.
constexpr FileKind records{"a file of JSON records, one a line", kinds::mib * 256};

/// Files of a name's extension, folders searched through, in the order of their paths.
std::vector<fs::path> files_of(const std::vector<fs::path>& paths, std::string_view extension) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);  // opening it tells what is wrong with it
      continue;
    }
    std::vector<fs::path> found;
    for (auto entry = fs::recursive_directory_iterator(path, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error))
      if (entry->path().extension() == extension && entry->is_regular_file(error))
        found.push_back(entry->path());
    require(!error, "cannot list the folder '{}': {}; check its permissions", path.string(), error.message());
    require(!found.empty(), "the folder '{}' has no files *{}: name the folder of the benchmark's files",
            path.string(), extension);
    std::ranges::sort(found);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// The task of a file by its name, or by that of its folder.
const Task& task_of(const fs::path& file, std::span<const Task> tasks, std::string_view benchmark) {
  require(fs::exists(file), "'{}' does not exist: give files of {}, or folders of them", file.string(),
          benchmark);
  const std::string stem = file.stem(), folder = fs::absolute(file).parent_path().filename();
  auto task = std::ranges::find(tasks, std::string_view(stem), &Task::name);
  if (task == tasks.end()) task = std::ranges::find(tasks, std::string_view(folder), &Task::name);
  std::vector<std::string_view> known;
  for (const Task& of : tasks)
    if (of.refused.empty()) known.push_back(of.name);
  require(task != tasks.end(),
          "'{}' is of no task of {}: give the file or its folder the name of its task, one of {}",
          file.string(), benchmark, fmt::join(known, ", "));
  require(task->refused.empty(),
          "'{}': task {} of {} cannot be scored against one fixed answer ({}): leave it out; {} can",
          file.string(), task->name, benchmark, task->refused, fmt::join(known, ", "));
  return *task;
}

/// Calls use(record, where) with each line of a file, and names the file and the line in its errors.
void for_each_line(const fs::path& file, const std::function<void(const json&, const std::string&)>& use) {
  LineReader lines(file, records);
  for (std::string line; lines.next(line);) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}, line {}", file.string(), lines.number());
    const json record = io::parse_json_object(line, where);
    io::take_json_apart(where, [&] { use(record, where); });
  }
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text.erase(0, text.find_first_not_of(" \t\r\n"));
}
std::string without_spaces_behind(std::string text) {
  return text.erase(text.find_last_not_of(" \t\r\n") + 1);
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// The first of several texts, or the only one.
std::string first_text(const json& value) {
  return trimmed(text_of(value.is_array() ? value.at(0) : value));
}

void add(std::vector<BenchmarkRecord>& all, BenchmarkRecord record, const std::string& where) {
  require(!record.answer.empty(), "'{}': the answer is empty: take the line out", where);
  all.push_back(std::move(record));
}

/// The letter of the option that the answer names, by its text or its letter.
std::string letter_of_answer(const json& options, const json& answer, const std::string& where) {
  const json& first = answer.is_array() ? answer.at(0) : answer;
  const auto letter = [](std::size_t index) { return std::string(1, static_cast<char>('A' + index)); };
  for (std::size_t i = 0; i < options.size(); ++i)
    if (options[i] == first || first == letter(i)) return letter(i);
  fail("'{}': the answer {} is none of the options: take the line out, or mend it", where, io::shown(first));
}

}  // namespace

std::vector<BenchmarkRecord> read_ruler(const std::vector<fs::path>& paths) {
  std::vector<BenchmarkRecord> all;
  for (const fs::path& file : files_of(paths, ".jsonl")) {
    const Task& task = task_of(file, ruler_tasks, "RULER");
    for_each_line(file, [&](const json& record, const std::string& where) {
      const json& outputs = record.at("outputs");
      require(outputs.is_array() && outputs.size() == 1,
              "'{}': task {} has one output a line, this one has {}: take the line out", where, task.name,
              outputs.size());
      const std::string prompt = record.at("input").get<std::string>() + record.value("answer_prefix", "");
      add(all,
          {.task = std::string(task.name),
           .prompt = without_spaces_behind(prompt),
           .answer = first_text(outputs)},
          where);
    });
  }
  return all;
}

std::vector<BenchmarkRecord> read_infinitebench(const std::vector<fs::path>& paths) {
  std::vector<BenchmarkRecord> all;
  for (const fs::path& file : files_of(paths, ".jsonl")) {
    const Task& task = task_of(file, infinitebench_tasks, "InfiniteBench");
    for_each_line(file, [&](const json& record, const std::string& where) {
      std::string prompt = fmt::format("{}\n\n{}\n", record.at("context").get<std::string>(),
                                       without_spaces_behind(record.at("input").get<std::string>()));
      std::string answer;
      if (task.asks == of_letter) {
        const json& options = record.at("options");
        for (std::size_t i = 0; i < options.size(); ++i)
          prompt += fmt::format("{}. {}\n", static_cast<char>('A' + i), text_of(options[i]));
        answer = letter_of_answer(options, record.at("answer"), where);
      } else {
        answer = first_text(record.at("answer"));
      }
      add(all, {.task = std::string(task.name), .prompt = prompt + std::string(task.asks), .answer = answer},
          where);
    });
  }
  return all;
}

std::vector<fs::path> find_pg19(const std::vector<fs::path>& paths) {
  std::vector<fs::path> books = files_of(paths, ".txt");
  for (const fs::path& book : books) {
    const std::string stem = book.stem();
    require(!stem.empty() && stem.find_first_not_of("0123456789") == stem.npos,
            "'{}' is no book of PG-19, whose files are NUMBER.txt: take it out, or pack any texts with "
            "annulus-tokens pack",
            book.string());
  }
  std::ranges::sort(books, {}, [](const fs::path& book) {
    const std::string stem = book.stem();
    return std::pair(stem.size(), stem);
  });
  return books;
}

}  // namespace annulus::eval
