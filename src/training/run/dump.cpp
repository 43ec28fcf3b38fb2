#include "training/run/dump.hpp"

#include <annulus/base/error.hpp>

#include "training/io/atomic.hpp"
#include "training/io/logging.hpp"

namespace annulus::training {

void Dump::check(std::int64_t first, std::int64_t last, bool writes) {
  if (request_.file.empty()) return;
  if (request_.step == 0) request_.step = first;
  require(request_.step >= first && request_.step <= last,
          "--dump-step {}: this run makes optimizer steps {} to {}: name one of these, make the run longer, "
          "or start from an earlier checkpoint (--resume)",
          request_.step, first, last);
  if (writes) io::require_writable(request_.file);
}

StepResult Dump::record(comm::Communicator& world, const checkpoint::Progress& progress,
                        std::int64_t sequences, const ResolvedRun& run, const Learner& learner,
                        const std::function<StepResult(dump::Recorder&)>& update) const {
  StepResult result;
  dump::record(
      request_.file, world, {sequences, run.step.tokens},
      [&](io::FileWriter& file) {
        file.set_attribute("program", "annulus-train");
        file.set_attribute("step", request_.step);
        file.set_attribute("config", progress.config);
        file.set_attribute("dtype", std::string(name_of(run.step.type)));
        file.set_attribute("device", learner.description());
        file.set_attribute("ranks", world.size());
        file.set_attribute("schedule", learner.plans().attention().schedule);
        file.set_attribute("layout", learner.plans().problem().layout.to_string());
        file.set_attribute("kernel", std::string(name_of(learner.kernel())));
      },
      [&](dump::Recorder& recorder) { result = update(recorder); });
  if (world.rank() == 0)
    logging::info("the tensors of optimizer step {} are in {}", request_.step, request_.file.string());
  return result;
}

}  // namespace annulus::training
