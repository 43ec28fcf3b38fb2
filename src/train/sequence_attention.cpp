#include "train/sequence_attention.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>
#include <annulus/simulate/choose.hpp>

namespace annulus::train {

namespace {

// One of the terms that '+' joins is `documents` without start offsets.
bool takes_documents_from_data(std::string_view mask) {
  while (true) {
    const auto plus = mask.find('+');
    if (mask.substr(0, plus) == "documents") return true;
    if (plus == std::string_view::npos) return false;
    mask.remove_prefix(plus + 1);
  }
}

/// Training computes on the host.
attention::Kernel parse_kernel(const std::string& name) {
  const attention::Kernel kernel = attention::parse_kernel(name, "attention.kernel =");
  require(kernel != attention::Kernel::mma,
          "attention.kernel = '{}' is for GPUs, but training computes on the host: use automatic", name);
  return kernel;
}

}  // namespace

SequenceAttention::SequenceAttention(const HostExec& exec, comm::Communicator& context, const Config& config)
    : context_(context),
      schedule_(config.attention.schedule),
      mask_text_(config.attention.mask),
      kernel_(parse_kernel(config.attention.kernel)),
      stall_limit_(config.stall_limit()),
      follows_documents_(takes_documents_from_data(mask_text_)) {
  problem_.topology = context.topology();
  problem_.heads = config.model.heads;
  problem_.kv_heads = config.model.kv_heads;
  problem_.head_dim = config.model.head_dim;
  const std::int64_t tokens = config.data.sequence_length;
  starts_ = {0};
  Mask mask = follows_documents_ ? Mask::with_documents(mask_text_, tokens, starts_, "attention.mask")
                                 : Mask::parse(mask_text_, tokens, "attention.mask");
  require(mask.rule().right == 0,
          "attention.mask = '{}' lets a token attend to later ones, which it is to predict: {}", mask_text_,
          mask_text_ == "full" ? "use causal" : "join causal, as in causal+" + mask_text_);
  problem_.mask = mask;
  choose(config);
  problem_ = plan::arranged_for(schedule_, std::move(problem_), "attention.schedule");
  set_mask(exec, std::move(mask));
}

/// Sets schedule and layout. Documents of later sequences are not known yet: what is chosen fits a sequence
/// that is one document. Every rank chooses alike, from the same numbers.
void SequenceAttention::choose(const Config& config) {
  const std::string& layout = config.attention.layout;
  if (schedule_ != simulate::automatic && layout != simulate::automatic) {
    problem_.layout = Layout::parse(layout, "attention.layout");
    return;
  }
  const simulate::Cluster cluster = config.attention.cluster.empty()
                                        ? simulate::default_cluster()
                                        : simulate::read_cluster(config.attention.cluster);
  constexpr std::array passes = {plan::Pass::forward, plan::Pass::backward};
  simulate::Choice choice = simulate::choose(problem_, schedule_, layout, passes, cluster, std::nullopt,
                                             "attention.schedule", "attention.layout");
  schedule_ = std::move(choice.schedule);
  problem_.layout = choice.layout;
}

PositionMap SequenceAttention::rows() const {
  return problem_.shard(context_.rank());
}

distributed::Attention<HostExec, float>& SequenceAttention::for_sequence(
    const HostExec& exec, std::span<const std::int64_t> document_starts) {
  if (follows_documents_ && !std::ranges::equal(document_starts, starts_)) {
    const Region region("annulus::train::plan");
    const Kokkos::Timer timer;
    starts_.assign(document_starts.begin(), document_starts.end());
    set_mask(exec, Mask::with_documents(mask_text_, problem_.mask.tokens(), starts_, "attention.mask"));
    planning_seconds_ += timer.seconds();
  }
  return *attention_;
}

void SequenceAttention::set_mask(const HostExec& exec, Mask mask) {
  problem_.mask = std::move(mask);
  const PositionMap whole = Layout().shard(problem_.mask.tokens(), 1, 0);
  pairs_ = problem_.mask.pairs(whole, whole);
  plan::Plan forward = plan::make_plan(schedule_, problem_, plan::Pass::forward, "attention.schedule");
  plan::Plan backward = plan::make_plan(schedule_, problem_, plan::Pass::backward, "attention.schedule");
  if (attention_) {
    attention_->set_plans(exec, std::move(forward), std::move(backward));
    return;
  }
  // The first plans are proved before anything runs; those of later sequences come from the same builders.
  plan::validate(forward);
  plan::validate(backward);
  attention_.emplace(exec, context_, std::move(forward), std::move(backward),
                     distributed::Settings{.kernel = kernel_, .stall_limit = stall_limit_});
}

}  // namespace annulus::train
