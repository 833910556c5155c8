#include "commands/planning/job_script.hpp"

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::app {
namespace {

/// A directive, left out where its value is empty or 0.
std::string directive(const JobScript& s, std::string_view option, const std::string& value) {
  if (value.empty() || value == "0") {
    return "";
  }
  const std::string_view mark = s.scheduler == Scheduler::kSlurm ? "#SBATCH"
                                : s.scheduler == Scheduler::kPbs ? "#PBS"
                                                                 : "# flux:";
  return fmt::format("{} {}{}\n", mark, option, directive_word(s.scheduler, value));
}

std::string clock_text(std::int64_t seconds) {
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string slurm_directives(const JobScript& s) {
  const std::int64_t most = s.nodes + s.spares.value_or(0);
  const std::string nodes =
      s.least_nodes < s.nodes ? fmt::format("{}-{}", s.least_nodes, most) : fmt::format("{}", most);
  // A job of a range of nodes that asks for tasks wants its first number of nodes again when
  // requeued.
  const std::string tasks =
      s.least_nodes < s.nodes
          ? fmt::format("#SBATCH --mincpus={}\n", s.ranks_per_node * s.cpus_per_task)
          : fmt::format("#SBATCH --ntasks-per-node={}\n#SBATCH --cpus-per-task={}\n",
                        s.ranks_per_node, s.cpus_per_task);
  const bool shell_gets_signal = s.launcher == Launcher::kMpirun;
  return directive(s, "--job-name=", s.name) + directive(s, "--nodes=", nodes) + tasks +
         directive(s, "--gpus-per-node=", fmt::format("{}", s.gpus_per_node)) +
         (s.memory_gib > 0 ? fmt::format("#SBATCH --mem={}G\n", s.memory_gib) : "") +
         directive(s, "--partition=", s.partition) + directive(s, "--account=", s.account) +
         directive(s, "--qos=", s.qos) + directive(s, "--constraint=", s.constraint) +
         directive(s, "--time=", clock_text(s.limit_seconds)) +
         fmt::format("#SBATCH --signal={}USR1@{}\n", shell_gets_signal ? "B:" : "",
                     s.signal_seconds) +
         (s.spares ? "#SBATCH --no-kill\n" : "") +
         "#SBATCH --requeue\n#SBATCH --open-mode=append\n" +
         (s.elements.empty()
              ? "#SBATCH --output=strata-%j.log\n"
              : fmt::format("#SBATCH --array=0-{}\n#SBATCH --output=strata-%A_%a.log\n",
                            s.elements.size() - 1));
}

std::string pbs_directives(const JobScript& s) {
  std::string chunk = fmt::format("{}:ncpus={}:mpiprocs={}", s.nodes,
                                  s.ranks_per_node * s.cpus_per_task, s.ranks_per_node);
  chunk += s.gpus_per_node > 0 ? fmt::format(":ngpus={}", s.gpus_per_node) : "";
  chunk += s.memory_gib > 0 ? fmt::format(":mem={}gb", s.memory_gib) : "";
  chunk += s.constraint.empty() ? "" : ":" + s.constraint;
  return directive(s, "-N ", s.name) + directive(s, "-l ", "select=" + chunk) +
         directive(s, "-l ", "walltime=" + clock_text(s.limit_seconds)) +
         directive(s, "-q ", s.partition) + directive(s, "-A ", s.account) +
         directive(s, "-l ", s.qos.empty() ? "" : "qos=" + s.qos) + "#PBS -r y\n#PBS -j oe\n";
}

std::string flux_directives(const JobScript& s) {
  return directive(s, "--job-name=", s.name) +
         directive(s, "--nodes=", fmt::format("{}", s.nodes)) +
         directive(s, "--nslots=", fmt::format("{}", s.nodes * s.ranks_per_node)) +
         directive(s, "--cores-per-slot=", fmt::format("{}", s.cpus_per_task)) +
         (s.gpus_per_node > 0 ? "# flux: --gpus-per-slot=1\n" : "") +
         directive(s, "--queue=", s.partition) + directive(s, "--bank=", s.account) +
         directive(s, "--requires=", s.constraint) +
         fmt::format("# flux: --time-limit={}s\n", s.limit_seconds) +
         "# flux: --output=strata-{{id}}.log\n";
}

struct SchedulerWords {
  std::string submit;  ///< the command
  std::string after;   ///< its option for a job that follows a failed one
  std::string directives;
  std::string start;  ///< prints where the job runs
  std::string again;  ///< what the script does to go on
};

SchedulerWords words_of(const JobScript& s) {
  const std::string file = shell_quoted(s.file);
  switch (s.scheduler) {
    case Scheduler::kSlurm:
      return {"sbatch --parsable",
              "--kill-on-invalid-dep=yes --dependency=afternotok:", slurm_directives(s),
              "trap : USR1 USR2 HUP TERM  # stop requests are for the ranks, which also know the "
              "limit\n"
              "restarts=${SLURM_RESTART_COUNT//[!0-9]/}\n"
              "echo \"job $SLURM_JOB_ID, start $((restarts + 1)), on "
              "$SLURM_JOB_NODELIST\"\n",
              "scontrol requeue \"$SLURM_JOB_ID\" && sleep 60  # until Slurm ends this script\n"};
    case Scheduler::kPbs:
      return {"qsub", "-W depend=afternotok:", pbs_directives(s),
              "cd \"$PBS_O_WORKDIR\" || exit 1\necho \"job $PBS_JOBID\"\n",
              fmt::format("qsub {}\n", file)};
    case Scheduler::kFlux:
      return {"flux batch", "--dependency=afternotok:", flux_directives(s),
              "echo \"job $FLUX_ENCLOSING_ID\"\n", fmt::format("flux batch {} \"$@\"\n", file)};
    case Scheduler::kShell:
      return {"", "", "", "", "exec bash \"$0\" \"$@\"\n"};
  }
  return {};
}

std::string header(const JobScript& s, const SchedulerWords& words) {
  const std::string submit = words.submit.substr(0, words.submit.find(" --"));
  std::string text = fmt::format(
      "#!/bin/bash\n# Trains {} on {}{} node{}{} x {} rank{}: {}. Made by\n#   {}\n",
      shell_quoted(s.config), s.least_nodes < s.nodes ? fmt::format("{} to ", s.least_nodes) : "",
      s.nodes, s.nodes == 1 ? "" : "s", s.spares ? fmt::format(" (and {} spare)", *s.spares) : "",
      s.ranks_per_node, s.ranks_per_node == 1 ? "" : "s", s.grid, s.command);
  text += s.scheduler == Scheduler::kPbs
              ? fmt::format("# Start: qsub {}\n", shell_quoted(s.file))
              : fmt::format("# Start: {} {} [--section.key=value ...]\n",
                            submit.empty() ? "bash" : submit, shell_quoted(s.file));
  if (s.scheduler != Scheduler::kShell) {
    text += fmt::format(
        "# {} s before the time limit the ranks get USR1: they end their step, write a checkpoint "
        "and "
        "exit with code 75.\n",
        s.signal_seconds);
  }
  return text + words.directives + "\n";
}

std::string module_line(const JobScript& s) {
  std::string text;
  for (const std::string& module : split_words(s.modules)) {
    text += " " + shell_quoted(module);
  }
  return text.empty() ? "" : "module load" + text + "\n";
}

/// Puts the settings of the array's element before those of the command line.
std::string element_settings(const JobScript& s) {
  std::string text;
  for (std::size_t i = 0; i < s.elements.size(); ++i) {
    text += fmt::format("  {}) set --", i);
    for (const std::string& setting : s.elements[i]) {
      text += " " + shell_quoted(setting);
    }
    text += " \"$@\" ;;\n";
  }
  return text.empty() ? "" : "case $SLURM_ARRAY_TASK_ID in\n" + text + "esac\n";
}

/// Counts starts in a file of the run directory.
std::string counting(const JobScript& s) {
  return fmt::format(R"sh(strata=${{STRATA:-{}}}
run={}
for setting in "$@"; do
  [[ $setting != --run.dir=* ]] || run=${{setting#*=}}
  [[ ${{option:-}} != --run.dir ]] || run=$setting
  option=$setting
done

# Starts without a new checkpoint are counted in the run's directory, across requeues. The newest checkpoint is the one
# written last: a run that went back behind a damaged one writes smaller steps.
newest_checkpoint() {{
  stat -c '%n@%Y' -- "$(ls -dt -- "$run"/checkpoints/step-* 2>/dev/null | head -n 1)" 2>/dev/null | grep -o 'step-.*' || echo none
}}
count_starts() {{ echo "$1 $before" >"$run/starts.new" && mv -- "$run/starts.new" "$run/starts"; }}
mkdir -p -- "$run" || exit 2
before=$(newest_checkpoint) last= starts=0
[ ! -s "$run/starts" ] || read -r starts last <"$run/starts"
[[ $before = "$last" && $starts =~ ^[1-9][0-9]{{0,5}}$ ]] || starts=0
count_starts $((++starts))
)sh",
                     shell_quoted(s.program), shell_quoted(s.run_directory));
}

constexpr std::string_view kGaveUp =
    R"sh(echo "stopped: exit code $code, and $starts consecutive starts ended without a new checkpoint; the lines above say why")sh";

/// Sets `nodes`, those that answer.
std::string healthy_nodes(const JobScript& s) {
  const bool slurm = s.scheduler == Scheduler::kSlurm;
  // A busy slurmctld may not answer.
  const std::string all = slurm
                              ? R"sh(for pause in 5 10 20; do
  list=$(squeue -h -j "$SLURM_JOB_ID" -o %N)
  all=$(sinfo -h -N -n "${list:-$SLURM_JOB_NODELIST}" -o '%N %t' |
    awk '$2 !~ /^(down|drain|drng|fail)|[*]$/ && !seen[$1]++ { print $1 }')
  [ -z "$all" ] || break
  sleep $pause
done)sh"
                              : fmt::format("all=$(awk '/^[^#]/ && !seen[$1]++ {{ print $1 }}' {})",
                                            shell_quoted(s.hostfile));
  const std::string_view probe =
      slurm ? "srun --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist=\"$1\""
            : "mpirun --host \"$1\" -n 1";
  const std::string text = fmt::format(R"sh(
# Up to {} nodes train, out of those that answer; the others are spares.
answers() {{ timeout 30 {} true </dev/null >/dev/null 2>&1 && echo "$1"; }}
{}
alive=$(for node in $all; do answers "$node" & done; wait)
mapfile -t nodes < <(grep -Fx "$alive" <<<"$all" | grep .)
echo "${{#nodes[@]}} of $(wc -w <<<"$all") nodes answer: ${{nodes[*]}}"
)sh",
                                       s.nodes, probe, all);
  return text +
         (slurm
              ? R"sh(# Where the node of this script is lost, Slurm keeps the job without it: a guard on the last node requeues the job.
watch='while sleep 20 || :; do
  nodes=$(squeue -h -j "$SLURM_JOB_ID" -o %N) && [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -Fxq "$0" || scontrol requeue "$SLURM_JOB_ID"
done'
if [ ${#nodes[@]} -gt 1 ]; then
  srun --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist="${nodes[-1]}" bash -c "trap : USR1 USR2 HUP; $watch" "$SLURMD_NODENAME" </dev/null &
  guard=$!
fi
)sh"
              : "");
}

/// Sets `ranks` to those of the replicas that `nodes` have room for, and leaves the other nodes
/// out.
std::string fitted_ranks(const JobScript& s, const SchedulerWords& words) {
  const std::string requeue =
      s.scheduler == Scheduler::kSlurm && s.chain == 1
          ? fmt::format("[ \"$starts\" -lt {} ] || {{ {}; exit $code; }}\n  {}  ", s.starts,
                        kGaveUp, words.again)
          : "";
  return fmt::format(R"sh(nodes=("${{nodes[@]:0:{0}}}")
# As many replicas as these nodes have room for: a divisor of the {1} lanes.
data={1}
until [ $data -eq 0 ] || {{ [ $((data * {2})) -le $((${{#nodes[@]}} * {3})) ] && [ $(({1} % data)) -eq 0 ]; }}; do data=$((data - 1)); done
if [ $data -eq 0 ]; then
  echo "the nodes that answer have no room for a replica of {2} ranks"
  code=5
  {4}exit $code
fi
ranks=$((data * {2}))
nodes=("${{nodes[@]:0:$(((ranks + {5}) / {3}))}}")
)sh",
                     s.nodes, s.lanes, s.model_ranks, s.ranks_per_node, requeue,
                     s.ranks_per_node - 1);
}

/// Sets `ranks`.
std::string rank_count(const JobScript& s, const SchedulerWords& words) {
  if (s.spares) {
    return healthy_nodes(s) + fitted_ranks(s, words);
  }
  if (s.scheduler == Scheduler::kFlux && s.gpus_per_node > 0) {
    return "";
  }
  if (s.least_nodes == s.nodes) {
    return fmt::format("ranks={}\n", s.nodes * s.ranks_per_node);
  }
  return fmt::format(R"sh(
# As many replicas as the nodes have room for: a divisor of the {0} lanes.
data={0} nodes=${{SLURM_JOB_NUM_NODES//[!0-9]/}}
while [ $((data * {1})) -gt $((nodes * {2})) ] || [ $(({0} % data)) -ne 0 ]; do data=$((data - 1)); done
ranks=$((data * {1}))
)sh",
                     s.lanes, s.model_ranks, s.ranks_per_node);
}

/// The words of "strata train" with its container.
std::string train_words(const JobScript& s) {
  std::string words;
  if (!s.container.empty()) {
    words = fmt::format("apptainer exec {}{} ", s.gpus_per_node > 0 ? "--nv " : "",
                        shell_quoted(s.container));
  }
  words += fmt::format("\"$strata\" train {}", shell_quoted(s.config));
  for (const std::string& setting : s.settings) {
    words += " " + shell_quoted(setting);
  }
  return words + " \"$@\" --run.resume=auto";
}

std::string srun_lines(const JobScript& s) {
  return fmt::format(
             "export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-{}}}  # srun does not take it from "
             "sbatch\n",
             s.cpus_per_task) +
         (s.fence.empty() ? ""
                          : fmt::format("export SLURM_PMIX_FENCE={}  # Slurm 22.05's default fence "
                                        "crashes some starts\n",
                                        shell_quoted(s.fence))) +
         "binding=cores\n"
         "[ -z \"${STRATA_NO_BINDING:-}\" ] || binding=none  # on nodes with fewer cores than "
         "ranks\n" +
         fmt::format(
             "srun --mpi={} --kill-on-bad-exit=1 {}--ntasks=$ranks --ntasks-per-node={} "
             "--cpu-bind=$binding {}\\\n  {}\n",
             s.mpi_type,
             s.spares
                 ? "--overlap --nodes=${#nodes[@]} --nodelist=\"$(IFS=,; echo \"${nodes[*]}\")\" "
                 : "",
             s.ranks_per_node, s.gpus_per_node > 0 ? "--gpu-bind=none " : "", train_words(s)) +
         "code=$?\n";
}

std::string mpirun_lines(const JobScript& s) {
  const bool shell = s.scheduler == Scheduler::kShell;
  // In a session of its own a terminal that closes does not end mpirun.
  std::string start = shell ? "setsid mpirun" : "mpirun";
  if (s.scheduler == Scheduler::kPbs) {
    // PBS sends no signal ahead of the limit.
    start = fmt::format("timeout --preserve-status --foreground --signal=USR1 {} mpirun",
                        s.limit_seconds - s.signal_seconds);
  }
  const std::string hosts =
      s.spares ? fmt::format("--host \"$(printf '%s:{},' \"${{nodes[@]}}\")\" ", s.ranks_per_node)
      : s.hostfile.empty() ? ""
                           : fmt::format("--hostfile {} ", shell_quoted(s.hostfile));
  return fmt::format(
             R"sh(mapping=(--map-by ppr:{0}:node:PE={1} --bind-to core)
[ -z "${{STRATA_NO_BINDING:-}}" ] || mapping=(--map-by ppr:{0}:node --bind-to none)  # on nodes with fewer cores than ranks
{2} {3}-n $ranks "${{mapping[@]}}" \
  {4} &
launcher=$!
{5}
# mpirun hands USR1 to the ranks; on TERM it would kill them. A signal that interrupts a wait as mpirun ends may cost bash
# the exit code.
while kill -0 $launcher 2>/dev/null; do sleep 1; done
wait $launcher; code=$?
)sh",
             s.ranks_per_node, s.cpus_per_task, start, hosts, train_words(s),
             shell ? "trap 'stopping=yes; kill -USR1 $launcher 2>/dev/null' USR1 USR2 HUP TERM INT"
                   : "trap 'kill -USR1 $launcher 2>/dev/null' USR1 USR2 HUP TERM") +
         (s.spares ? "# Where Slurm ends its daemons, mpirun returns 0; a run that is done has "
                     "removed its lock.\n"
                     "[ $code -ne 0 ] || [ ! -e \"$run/run.lock\" ] || code=137\n"
                   : "") +
         (shell ? "[ -z \"${stopping:-}\" ] || exit $code\n" : "");
}

std::string flux_lines(const JobScript& s) {
  // By node, so that each rank sees all GPUs there.
  const std::string resources =
      s.gpus_per_node > 0
          ? fmt::format("--tasks-per-node={} --cores={} --gpus-per-node={}", s.ranks_per_node,
                        s.nodes * s.ranks_per_node * s.cpus_per_task, s.gpus_per_node)
          : fmt::format("--ntasks=$ranks --cores-per-task={}", s.cpus_per_task);
  return fmt::format(
      "flux run {}--nodes={} {} \\\n"
      "  --time-limit={}s --signal=SIGUSR1@{}s \\\n  {}\ncode=$?\n",
      s.mpi_type == "pmix" ? "-o pmi=pmix " : "", s.nodes, resources, s.limit_seconds,
      s.signal_seconds, train_words(s));
}

std::string verdict(const JobScript& s, const SchedulerWords& words) {
  const std::string in_place =
      s.spares
          ? fmt::format(
                R"sh(if [ $code -ne 75 ]; then
  echo "exit code $code, newest checkpoint ${{now%@*}}; going on with the nodes that answer"
  {}exec bash "$0" "$@"
fi
)sh",
                s.scheduler == Scheduler::kSlurm ? "[ -z \"${guard:-}\" ] || kill $guard\n  " : "")
          : "";
  const std::string next = s.chain > 1 ? "the next job of the chain goes on" : "restarting";
  return fmt::format(R"sh(
case $code in
  0) exit 0 ;;
  2 | 3 | 4 | 6 | 126 | 127)
    [ $code -ne 2 ] || count_starts $((starts - 1))  # another job may train in this directory
    echo "stopped: exit code $code, which a restart would repeat; the lines above say why"
    exit $code ;;
esac
now=$(newest_checkpoint)
if [ "$now" = "$before" ] && [ "$starts" -ge {} ]; then
  {}
  exit $code
fi
{}echo "exit code $code, newest checkpoint ${{now%@*}}; {}"
{}exit $code
)sh",
                     s.starts, kGaveUp, in_place, next, s.chain > 1 ? "" : words.again);
}

}  // namespace

std::string submit_command(Scheduler scheduler) {
  return words_of({.scheduler = scheduler}).submit;
}

std::string submit_after(Scheduler scheduler, const std::string& before) {
  return words_of({.scheduler = scheduler}).after + shell_quoted(before);
}

std::string script_text(const JobScript& s) {
  const SchedulerWords words = words_of(s);
  return header(s, words) + words.start + module_line(s) + element_settings(s) + counting(s) +
         rank_count(s, words) +
         (s.scheduler == Scheduler::kFlux   ? flux_lines(s)
          : s.launcher == Launcher::kMpirun ? mpirun_lines(s)
                                            : srun_lines(s)) +
         verdict(s, words);
}

}  // namespace strata::app
