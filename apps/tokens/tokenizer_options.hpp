#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include <annulus/training/data/tokenizer.hpp>

/// The tokenizer that a command line names.
namespace annulus::tokens {

struct TokenizerArguments {
  std::string tokenizer = "byte";
  std::string model;
  std::string served;  ///< of a process that has the tokenizer (pack_tokenizer_json.py): its JSON object
};

/// Adds --tokenizer, --model and, for other programs, --served-tokenizer.
void add_tokenizer(CLI::App& command, TokenizerArguments& arguments);

struct ChosenTokenizer {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string settings = {};  ///< what else ids depend on
  int parquet_reader = -1;    ///< data::PackOptions::parquet_reader
};
/// Throws Error naming the option that does not fit.
ChosenTokenizer make_tokenizer(const TokenizerArguments& arguments);

}  // namespace annulus::tokens
