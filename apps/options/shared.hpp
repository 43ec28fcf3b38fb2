#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace annulus::options {

/// An option that several commands have. One that means one thing in some commands and another in others has
/// a constant for each meaning.
struct Shared {
  const char* name;
  std::string help;
  void (*number)(std::string_view name, std::int64_t value) = nullptr;  ///< checks it; nullptr: any
  void (*text)(std::string_view name, const std::string& value) = nullptr;

  static const Shared schedule, schedule_or_auto, layout, layout_or_auto, mask, placement, tokens, heads,
      kv_heads, head_dim, v_head_dim, batch, dtype, kernel, seed,
      ranks_of_cluster,           ///< --ranks of a cluster that need not be there
      ranks_per_node_of_cluster,  ///< --ranks-per-node, where a cluster file may say it
      cluster,                    ///< --cluster: its links and kernels
      sparsity_of_prediction,     ///< --sparsity: a share or a recorded selection, not a pattern
      ranks_per_node_of_job,      ///< of the ranks that mpirun started
      transport, max_ctas, no_copy_engines, nvlink_multicast, repetitions, json, csv, html;
};

/// Validator of CLI11 for options without sign: the library would read "-1" as the largest number.
std::string without_sign(const std::string& text);

/// Validator for options that count tokens, rows or bytes: 128k is 131072; k, M, G and T stand for powers of
/// 1024.
CLI::Validator in_units();

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

/// Declares the options that a command takes, and checks their values when the command line has been parsed:
/// CLI::App::parse then throws Error naming the option whose value makes no sense. The command's callback is
/// in use from here on.
class SharedOptions {
 public:
  explicit SharedOptions(CLI::App& command);

  /// Reads the option into `value`, which holds its default and outlives the parsing: a number, a text or a
  /// path, a bool for a flag, or a vector for an option that takes several values. `more` ends the help text:
  /// what this command does with the option.
  template <class T>
  CLI::Option* add(const Shared& option, T& value, const std::string& more = "") {
    CLI::Option* made = nullptr;
    if constexpr (std::is_same_v<T, bool>) {
      made = command_.add_flag(option.name, value, option.help + more);
    } else {
      made = command_.add_option(option.name, value, option.help + more);
    }
    if constexpr (is_list<T>) made->expected(1, -1);
    if constexpr (std::is_same_v<T, std::uint64_t>) made->check(without_sign);
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::vector<std::int64_t>>)
      made->transform(in_units());
    checks_->push_back([&option, &value] {
      if constexpr (is_list<T>) {
        for (const auto& one : value) check(option, one);
      } else {
        check(option, value);
      }
    });
    return made;
  }

 private:
  template <class T>
  static void check(const Shared& option, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (option.text != nullptr) option.text(option.name, value);
    } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      if (option.number != nullptr) option.number(option.name, value);
    }
  }

  CLI::App& command_;
  std::shared_ptr<std::vector<std::function<void()>>> checks_;  // the command's callback has them, too
};

}  // namespace annulus::options
