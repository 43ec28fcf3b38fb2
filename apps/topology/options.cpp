#include "topology/options.hpp"

#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "common/conventions.hpp"

namespace annulus::topology_app {

void add_options(CLI::App& app, TopologyOptions& o) {
  // The group that is added to: what is looked at, then what is done.
  const char* group = "What is looked at";
  const auto option = [&](const char* name, auto& to, const char* description) {
    return app.add_option(name, to, description)->group(group);
  };
  const auto flag = [&](const char* name, bool& to, const char* description) {
    return app.add_flag(name, to, description)->group(group);
  };
  CLI::Option* xml =
      option("--xml", o.xml, "nodes as hwloc XML files ([HOST=]FILE, several) instead of this machine");
  CLI::Option* from =
      option("--from", o.from, "the folder in which --save of every node of the job left its description");
  CLI::Option* type = option("--node-type", o.node_type,
                             "guess nodes of this type, with --output: a100, a800, h800 or gh200");
  option("--bound", o.bound,
         "the low or the high end of the ranges of --node-type, in place of what is usual: low, usual, high")
      ->needs(type)
      ->check(CLI::IsMember({"low", "usual", "high"}));
  CLI::Option* profile =
      option("--profile", o.profile, "site profile: what a node has to be (docs/formats/site-profile.md)");
  CLI::Option* ranks_file = option(
      "--ranks", o.ranks_file,
      "lines 'RANK HOST' (of --where, or 'srun -l hostname'), - for stdin; else Slurm's variables tell");
  CLI::Option* ranks_per_node = option("--ranks-per-node", o.ranks_per_node,
                                       "ranks per node; 0: the job's, else the profile's, else one per GPU")
                                    ->check(app::at_least(0));
  CLI::Option* switches = option("--switches", o.switches,
                                 "a file with the output of 'scontrol show topology' instead of calling it");
  CLI::Option* rank =
      option("--local-rank", o.local_rank,
             "the rank among those of its node, for --env and --exec; else its launcher tells")
          ->check(app::at_least(0));
  CLI::Option* ranks =
      option("--local-ranks", o.local_ranks, "ranks of its node, likewise")->check(app::at_least(1));

  group = "What is done (without any: a readable tree)";
  CLI::Option* output =
      option("--output", o.output, "write a cluster file with guessed rates (docs/formats/cluster.md)");
  CLI::Option* json =
      option("--json", o.json, "write what was found and decided to a file; - for stdout, in place of text");
  CLI::Option* save = option("--save", o.save, "write this node's description into a folder, as HOST.xml");
  CLI::Option* env = flag("--env", o.env, "print what one rank's environment is to be, for a shell");
  CLI::Option* exec =
      flag("--exec", o.execute, "set one rank's environment, bind it and start the command that follows --");
  CLI::Option* launch = flag("--launch", o.launch, "print what srun or mpirun are to be told, for a shell");
  option("--hostfile", o.hostfile,
         "with --launch: where to write the ranks' hosts when switches ask for an order")
      ->needs(launch);
  option("--nodes", o.nodes, "with --launch: so many of the job's nodes; 0: all")
      ->needs(launch)
      ->check(app::at_least(0));
  CLI::Option* where = flag("--where", o.where, "print the rank and the host of this process, for --ranks");
  flag("--strict", o.strict, "take warnings for errors");
  CLI::Option* command = option("command", o.command, "the program of --exec and its arguments");

  env->excludes(exec, launch, save, where);
  exec->excludes(launch, save, where);
  launch->excludes(save, where);
  save->excludes(where);
  for (CLI::Option* of_this_machine : {exec, save}) of_this_machine->excludes(xml, from);
  xml->excludes(from);
  type->excludes(xml, from, save, env, exec, launch, where)->needs(output);
  command->needs(exec);
  rank->needs(ranks);
  ranks->needs(rank);
  // What is done, and options that have no part in it.
  const std::vector<std::pair<CLI::Option*, std::vector<CLI::Option*>>> without = {
      {type, {profile, ranks_file, ranks_per_node, switches, json}},
      {save, {ranks_file, ranks_per_node, switches, output, json}},
      {where, {xml, from, profile, ranks_file, ranks_per_node, switches, output, json}},
      {env, {ranks_file, ranks_per_node, switches, output}},
      {exec, {ranks_file, ranks_per_node, switches, output}}};
  app.parse_complete_callback([&o, without] {
    for (const auto& [done, others] : without)
      for (const CLI::Option* const other : others)
        require(done->count() == 0 || other->count() == 0, "{} has no effect with {}: leave one of them out",
                other->get_name(), done->get_name());
    require(!o.execute || !o.command.empty(), "--exec lacks the command to start: write it after --");
    require(o.local_rank < 0 || o.local_ranks > o.local_rank,
            "--local-rank {} of --local-ranks {}: give both, the rank from 0 to below their number",
            o.local_rank, o.local_ranks);
    require(o.local_ranks == 0 || o.env || o.execute,
            "--local-rank and --local-ranks go with --env and --exec");
  });
  app.footer(
      "Examples:\n"
      "  annulus-topology                                 what this machine is made of\n"
      "  annulus-topology --output guess.toml             a cluster file for annulus-plan --cluster\n"
      "  srun annulus-topology --exec -- ./program        each rank bound to its GPU, NICs and cores");
}

}  // namespace annulus::topology_app
