#include "training/model/pass_parts.hpp"

#include <fmt/format.h>

#include "training/model/parameters.hpp"

namespace annulus::model {

namespace {

UnitCall weights(int unit, int next) {
  return {UnitCall::Kind::weights, unit, next};
}
UnitCall release(int unit) {
  return {UnitCall::Kind::release_weights, unit};
}
UnitCall gradients(int unit) {
  return {UnitCall::Kind::gradients, unit};
}
UnitCall finish(int unit) {
  return {UnitCall::Kind::finish_gradients, unit};
}

/// Embedding and layers.
std::vector<PassPart> layers_forward(const Config& config) {
  using enum PassPart::Kind;
  const int embedded = ParameterMap::embedding_unit();
  std::vector<PassPart> parts{
      {embedding, -1, {weights(embedded, ParameterMap::layer_unit(0)), release(embedded)}, 1}};
  for (int i = 0; i < config.layers; ++i) {
    const int unit = ParameterMap::layer_unit(i);
    parts.push_back({forward, i, {weights(unit, unit + 1), release(unit)}, 1});
  }
  return parts;
}

}  // namespace

std::string text(const PassPart& part) {
  switch (part.kind) {
    case PassPart::Kind::embedding:
      return "embedding";
    case PassPart::Kind::forward:
      return fmt::format("forward of layer {}", part.layer);
    case PassPart::Kind::loss:
      return "LM head and loss";
    case PassPart::Kind::backward:
      return fmt::format("backward of layer {}", part.layer);
    default:
      return "backward of the embedding";
  }
}

std::vector<PassPart> pass_parts(const Config& config) {
  using enum PassPart::Kind;
  const int embedded = ParameterMap::embedding_unit(), last = ParameterMap::layer_unit(config.layers),
            head = config.tied ? embedded : last;
  std::vector<PassPart> parts = layers_forward(config);
  if (config.tied)
    parts.push_back({loss,
                     -1,
                     {weights(last, head), weights(head, last - 1), gradients(head), gradients(last),
                      finish(last), release(head), release(last)},
                     4});
  else
    parts.push_back({loss, -1, {weights(last, last - 1), gradients(last), finish(last), release(last)}, 2});
  for (int i = config.layers - 1; i >= 0; --i) {
    const int unit = ParameterMap::layer_unit(i);
    parts.push_back({backward,
                     i,
                     {weights(unit, i > 0 ? unit - 1 : -1), gradients(unit), release(unit), finish(unit)},
                     2});
  }
  parts.push_back({embedding_backward, -1, {gradients(embedded), finish(embedded)}, 1});
  return parts;
}

std::vector<PassPart> evaluation_parts(const Config& config) {
  const int embedded = ParameterMap::embedding_unit(), last = ParameterMap::layer_unit(config.layers);
  std::vector<PassPart> parts = layers_forward(config);
  if (config.tied)
    parts.push_back({PassPart::Kind::loss,
                     -1,
                     {weights(last, embedded), weights(embedded, -1), release(embedded), release(last)},
                     2});
  else
    parts.push_back({PassPart::Kind::loss, -1, {weights(last, -1), release(last)}, 1});
  return parts;
}

}  // namespace annulus::model
