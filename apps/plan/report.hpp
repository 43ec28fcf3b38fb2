#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "plan/options.hpp"

/// What the program says of plans: for the terminal, as JSON and as a page.
namespace annulus::planner {

/// One simulated plan in numbers.
struct PlanSummary {
  double time = 0;  ///< seconds
  double exposed = 0,
         exposed_mean = 0;  ///< exposed communication: of the rank with the most, and the mean; seconds
  std::int64_t intra_bytes = 0, inter_bytes = 0;  ///< sent, all ranks together
  simulator::Imbalance imbalance;
  std::int64_t buffer_bytes = 0;  ///< exchange buffers of the rank with the most
};

PlanSummary summarize(const simulator::Simulation& simulation);

/// What the summary says, as pairs of name and value, for the terminal and for the page.
std::vector<std::pair<std::string, std::string>> facts(const PlanSummary& summary);

/// Which of the rows of K and V that the plan sends the recorded selection needs. Nothing without such a
/// selection, or where it would take more than two gigabytes.
std::optional<simulator::ReceivedKeys> received_keys(const plan::Plan& plan, const PlanCase& c);

/// Received rows of keys as pairs of name and value, for the terminal and for the page; empty where there are
/// none.
std::vector<std::pair<std::string, std::string>> facts(const simulator::ReceivedKeys& keys);

/// One schedule in the table of --compare.
struct ComparisonRow {
  std::string schedule, layout;
  PlanSummary summary;  ///< of no meaning when it refuses
  std::string reason;   ///< why the schedule cannot serve the case; empty when it can
};

/// All schedules on one case, each on its best layout where that is open, the fastest first, those that
/// refuse behind. A hybrid is tried on every grid of more than one rank each way.
std::vector<ComparisonRow> compare(const PlanCase& c);

std::string table(const std::vector<ComparisonRow>& rows);

/// What was chosen, and the best of what it was chosen from.
std::string table(const simulator::ScheduleChoice& choice);

/// Who holds what of the sequence of --documents, and what each rank computes and sends in the pass, on the
/// layout `balanced` beside the problem's (zigzag where that is balanced itself).
std::string documents_report(const PlanCase& c);

/// Writes the plan, step by step as it is made, and what it takes on the cluster of `c` (docs/planning.md),
/// atomically.
void write_json(const std::filesystem::path& path, const plan::Plan& plan, const PlanCase& c,
                const simulator::Simulation& simulation, const std::optional<simulator::ReceivedKeys>& keys,
                const std::vector<ComparisonRow>& comparison);

/// Throws Error when the timeline would have more spans than a browser shows, before it is simulated.
void check_html_size(const plan::Plan& plan);

/// Writes a page that needs nothing else: the numbers, a timeline of ranks and links, a table by rank;
/// atomically. The timeline has time in ms from left to right; below one another, node by node, every rank
/// with a lane for computes and waits, and one for what it sends inside its node and one for what it sends
/// between nodes, as far as it does. Every span has a title to hover. Throws Error as check_html_size does.
void write_html(const std::filesystem::path& path, const plan::Plan& plan, const PlanCase& c,
                const simulator::Simulation& simulation);

}  // namespace annulus::planner
