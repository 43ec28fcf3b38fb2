#include "tokens/tokenizer_options.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::tokens {

namespace {

ChosenTokenizer served_tokenizer(const TokenizerArguments& arguments) {
  const nlohmann::json served = nlohmann::json::parse(arguments.served, nullptr, false);
  try {
    std::string model = data::read_tokenizer_model(arguments.model);
    data::TokenizerIdentity identity{.name = arguments.tokenizer,
                                     .vocabulary = served.at("vocabulary"),
                                     .end_of_document = served.at("end_of_document"),
                                     .fingerprint = data::fingerprint_of_model(model)};
    return {
        .tokenizer = data::make_piped_tokenizer(std::move(identity), std::move(model), served.at("sockets")),
        .settings = served.at("settings"),
        .parquet_reader = served.value("parquet_reader", -1)};
  } catch (const nlohmann::json::exception& error) {
    fail("--served-tokenizer is for programs that have a tokenizer, and '{}' is not what they give ({})",
         arguments.served, error.what());
  }
}

}  // namespace

void add_tokenizer(CLI::App& command, TokenizerArguments& arguments) {
  command.add_option("--tokenizer", arguments.tokenizer, "byte or sentencepiece")->capture_default_str();
  command.add_option("--model", arguments.model, "Model file of the sentencepiece tokenizer");
  command.add_option("--served-tokenizer", arguments.served)->group("");  // not for users
}

ChosenTokenizer make_tokenizer(const TokenizerArguments& arguments) {
  require(arguments.tokenizer != "sentencepiece" || !arguments.model.empty(),
          "--tokenizer sentencepiece needs --model FILE, the .model file that spm_train wrote or that came "
          "with the model");
  if (!arguments.served.empty()) return served_tokenizer(arguments);
  return {.tokenizer = data::make_tokenizer(arguments.tokenizer, arguments.model)};
}

}  // namespace annulus::tokens
