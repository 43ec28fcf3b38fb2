#include <annulus/training/model/unit_calls.hpp>

#include <fmt/format.h>

namespace annulus::model {

namespace {

/// Takes calls down, part by part.
class Calls {
 public:
  void begin(PassPart part) { part_ = part; }
  void weights(int unit, int next) { add(UnitCall::Kind::weights, unit, next); }
  void release(int unit) { add(UnitCall::Kind::release_weights, unit); }
  void gradients(int unit) { add(UnitCall::Kind::gradients, unit); }
  void finish(int unit) { add(UnitCall::Kind::finish_gradients, unit); }
  std::vector<UnitCall> take() { return std::move(calls_); }

 private:
  void add(UnitCall::Kind kind, int unit, int next = -1) { calls_.push_back({kind, unit, next, part_}); }

  PassPart part_;
  std::vector<UnitCall> calls_;
};

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

std::vector<UnitCall> unit_calls(const ParameterMap& map) {
  using enum PassPart::Kind;
  const int embedded = map.embedding_unit(), last = map.final_unit(), head = map.lm_head_unit(),
            layers = last - 1;
  Calls calls;
  calls.begin({embedding});
  calls.weights(embedded, map.layer_unit(0));
  calls.release(embedded);
  for (int i = 0; i < layers; ++i) {
    calls.begin({forward, i});
    calls.weights(map.layer_unit(i), i + 1 == layers ? last : map.layer_unit(i + 1));
    calls.release(map.layer_unit(i));
  }
  calls.begin({loss});
  const bool tied = head != last;
  const int after = map.layer_unit(layers - 1);
  calls.weights(last, tied ? head : after);
  if (tied) calls.weights(head, after);
  calls.gradients(head);
  calls.gradients(last);
  calls.finish(last);
  if (tied) calls.release(head);
  calls.release(last);
  for (int i = layers - 1; i >= 0; --i) {
    calls.begin({backward, i});
    const int unit = map.layer_unit(i);
    calls.weights(unit, i > 0 ? map.layer_unit(i - 1) : -1);
    calls.gradients(unit);
    calls.release(unit);
    calls.finish(unit);
  }
  calls.begin({embedding_backward});
  calls.gradients(embedded);
  calls.finish(embedded);
  return calls.take();
}

}  // namespace annulus::model
