#include "comm_cases.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include <fmt/ranges.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/groups.hpp"

namespace strata::comm::test {
namespace {

using Values = std::vector<std::int64_t>;

template <typename T>
TensorView writable(std::vector<T>& values) {
  return payload_of(std::span(values));
}
template <typename T>
ConstTensorView readable(const std::vector<T>& values) {
  return payload_of(std::span(values));
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Message `number` from one rank to another: its length and contents say which it is.
Values message(std::int64_t from, std::int64_t to, std::int64_t number) {
  Values values;
  for (std::int64_t i = 0; i <= number * number * number; ++i) {
    values.push_back(((from * 16 + to) * 16 + number) * 100000 + i);
  }
  return values;
}

void messages_arrive_in_order(Communicator& world, Findings& findings) {
  constexpr std::int64_t kMessages = 12;
  constexpr Tag kTags[] = {Tag::kActivation, Tag::kGradient};
  // Of the second tag the receives are posted only when the first tag's are done, so that messages
  // wait for them.
  std::vector<Values> payloads;
  std::vector<Request> sends;
  payloads.reserve(static_cast<std::size_t>(2 * kMessages * world.size()));
  for (std::int64_t peer = 0; peer < world.size(); ++peer) {
    for (std::int64_t n = 0; peer != world.rank() && n < 2 * kMessages; ++n) {
      payloads.push_back(message(world.rank(), peer, n));
      sends.push_back(world.send(readable(payloads.back()), peer, kTags[n % 2]));
    }
  }
  for (const std::int64_t parity : {0, 1}) {
    for (std::int64_t peer = world.size(); peer-- > 0;) {
      if (peer == world.rank()) {
        continue;
      }
      std::vector<Values> received;
      std::vector<Request> receives;
      for (std::int64_t n = parity; n < 2 * kMessages; n += 2) {
        received.emplace_back(message(peer, world.rank(), n).size(), -1);
      }
      for (Values& values : received) {
        receives.push_back(world.receive(writable(values), peer, kTags[parity]));
      }
      for (std::size_t i = 0; i < receives.size(); ++i) {
        receives[i].wait();
        const std::int64_t n = 2 * static_cast<std::int64_t>(i) + parity;
        findings.require_that(received[i] == message(peer, world.rank(), n),
                              fmt::format("message {} from rank {} is another one", n, peer));
      }
    }
  }
  for (Request& send : sends) {
    send.wait();
    findings.require_that(!send.pending() && send.test(), "a request that is done is pending");
  }
}

/// Every rank sends to every other, the last rank nothing; then messages around a ring that come in
/// late, two exchanges at once of which the second is waited for first.
void exchanges_are_one_request(Communicator& world, Findings& findings) {
  const std::int64_t last = world.size() - 1;
  std::vector<Values> sent;
  std::vector<Values> received;
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  sent.reserve(static_cast<std::size_t>(world.size()));
  received.reserve(static_cast<std::size_t>(world.size()));
  for (std::int64_t peer = 0; peer < world.size(); ++peer) {
    sent.push_back(message(world.rank(), peer, peer));
    received.emplace_back(message(peer, world.rank(), world.rank()).size(), -1);
    if (peer != world.rank() && world.rank() != last) {
      sends.push_back({.payload = readable(sent.back()), .peer = peer});
    }
    if (peer != world.rank() && peer != last) {
      receives.push_back({.payload = writable(received.back()), .peer = peer});
    }
  }
  world.exchange(sends, receives, Tag::kReduce).wait();
  for (const Incoming& incoming : receives) {
    findings.require_that(received[static_cast<std::size_t>(incoming.peer)] ==
                              message(incoming.peer, world.rank(), world.rank()),
                          fmt::format("what rank {} sent in an exchange", incoming.peer));
  }
  if (world.size() == 1) {
    findings.require_that(!world.exchange({}, {}, Tag::kReduce).pending(), "an empty exchange");
    return;
  }
  const std::int64_t to = (world.rank() + 1) % world.size();
  const std::int64_t from = (world.rank() + last) % world.size();
  const Values first{10 + world.rank()};
  const Values second{20 + world.rank()};
  Values of_first{-1};
  Values of_second{-1};
  const auto pass_on = [&](const Values& mine, Values& other) {
    const Outgoing outgoing{.payload = readable(mine), .peer = to};
    const Incoming incoming{.payload = writable(other), .peer = from};
    return world.exchange(std::span(&outgoing, 1), std::span(&incoming, 1), Tag::kGather);
  };
  Request one = pass_on(first, of_first);
  const std::string awaited = one.awaited();
  findings.require_that(awaited.find(fmt::format("receive from rank {} of the world", from)) == 0,
                        awaited);
  Request two = pass_on(second, of_second);
  two.wait();
  one.wait();
  findings.require_equal(of_first, (Values{10 + from}), "the first exchange");
  findings.require_equal(of_second, (Values{20 + from}), "the second exchange");
}

void collectives_reach_all(Communicator& world, Findings& findings) {
  const Values mine{world.rank() * 3, world.rank() - 7};
  Values all(static_cast<std::size_t>(2 * world.size()));
  world.all_gather(readable(mine), writable(all));
  for (std::int64_t r = 0; r < world.size(); ++r) {
    const auto at = static_cast<std::size_t>(2 * r);
    findings.require_equal((Values{all[at], all[at + 1]}), (Values{r * 3, r - 7}), "all_gather");
  }
  for (std::int64_t root = 0; root < world.size(); ++root) {
    Values values{100 * world.rank(), 1, 2};
    world.broadcast(writable(values), root);
    findings.require_equal(values, (Values{100 * root, 1, 2}), "broadcast");
  }
  for (const std::string& word : {std::string(), std::string("some text\0with a zero", 21)}) {
    std::string text;
    for (std::int64_t r = 0; r < world.rank(); ++r) {
      text += word;
    }
    std::string expected;
    for (const std::string& found : world.all_gather_texts(text)) {
      findings.require_that(found == expected, fmt::format("text \"{}\"", found));
      expected += word;
    }
  }
}

void nobody_leaves_a_barrier_before_all_are_there(Communicator& world, Findings& findings) {
  for (std::int64_t late = 0; late < world.size(); ++late) {
    if (late == world.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const double came = seconds();
    world.barrier();
    const std::vector<double> mine{came, seconds()};
    std::vector<double> all(static_cast<std::size_t>(2 * world.size()));
    world.all_gather(readable(mine), writable(all));
    double last_came = all[0];
    double first_left = all[1];
    for (std::size_t i = 0; i < all.size(); i += 2) {
      last_came = std::max(last_came, all[i]);
      first_left = std::min(first_left, all[i + 1]);
    }
    findings.require_that(first_left >= last_came, "a rank left a barrier before another came");
  }
}

void groups_follow_the_grid(Communicator& world, Findings& findings) {
  for (std::int64_t data = 1; data <= world.size(); ++data) {
    if (world.size() % data != 0) {
      continue;
    }
    const grid::Grid grid{.data = data, .pipeline = world.size() / data};
    ProgressEngine engine;
    const Groups groups = make_groups(world, engine, grid, {});
    findings.require_that(groups.coordinates == grid.coordinates_of(world.rank()),
                          "coordinates on the grid");
    findings.require_equal(groups.along(grid::Axis::kData).rank(), groups.coordinates.data,
                           "rank in the data group");
    findings.require_equal(groups.along(grid::Axis::kPipeline).rank(), groups.coordinates.pipeline,
                           "pipeline rank");
    findings.require_equal(groups.along(grid::Axis::kTensor).size(), 1, "size of the tensor group");
    findings.require_equal(groups.along(grid::Axis::kData).name(), "data group", "name");
    const auto members_of = [&](Communicator& group) {
      const Values mine{world.rank()};
      Values all(static_cast<std::size_t>(group.size()));
      group.all_gather(readable(mine), writable(all));
      return all;
    };
    findings.require_equal(members_of(groups.along(grid::Axis::kData)),
                           grid.group_of(world.rank(), grid::Axis::kData),
                           fmt::format("data group of {}", grid.text()));
    findings.require_equal(members_of(groups.along(grid::Axis::kPipeline)),
                           grid.group_of(world.rank(), grid::Axis::kPipeline),
                           fmt::format("pipeline group of {}", grid.text()));
    // All groups pass messages around at the same time, with the same tag.
    for (Communicator* group :
         {&groups.along(grid::Axis::kData), &groups.along(grid::Axis::kPipeline)}) {
      const std::int64_t to = (group->rank() + 1) % group->size();
      const std::int64_t from = (group->rank() + group->size() - 1) % group->size();
      if (group->size() == 1) {
        continue;
      }
      const Values mine{world.rank()};
      Values received{-1};
      Request receive = group->receive(writable(received), from, Tag::kActivation);
      Request send = group->send(readable(mine), to, Tag::kActivation);
      receive.wait();
      send.wait();
      const grid::Axis axis =
          group == &groups.along(grid::Axis::kData) ? grid::Axis::kData : grid::Axis::kPipeline;
      findings.require_equal(received[0],
                             grid.group_of(world.rank(), axis)[static_cast<std::size_t>(from)],
                             "neighbour in the group");
    }
  }
}

/// What agree(), or another function, throws on this rank.
std::optional<AgreedError> agreed(Communicator& world, const std::function<void()>& step,
                                  void (*on_ranks)(Communicator&,
                                                   const std::function<void()>&) = agree) {
  try {
    on_ranks(world, step);
  } catch (const AgreedError& error) {
    return error;
  }
  return std::nullopt;
}

void require_agreed(Findings& findings, const std::optional<AgreedError>& error, ExitCode code,
                    const std::string& text) {
  findings.require_that(error.has_value(), "no AgreedError where another rank failed");
  if (error) {
    findings.require_equal(std::string(error->what()), text, "agreed text");
    findings.require_that(error->code() == code, "agreed exit code");
  }
}

void failures_are_agreed_on(Communicator& world, Findings& findings) {
  int calls = 0;
  findings.require_that(!agreed(world, [&] { ++calls; }) && calls == 1, "a step that went well");
  require_agreed(findings, agreed(world, [] { fail(ExitCode::kData, "no such file"); }),
                 ExitCode::kData, "no such file");
  if (world.size() == 1) {
    return;
  }
  const std::int64_t last = world.size() - 1;
  require_agreed(findings,
                 agreed(world,
                        [&] {
                          if (world.rank() == last) {
                            fail(ExitCode::kCheckpoint, "a bit is wrong");
                          }
                        }),
                 ExitCode::kCheckpoint, fmt::format("rank {}: a bit is wrong", last));
  // All fail, each in its own way: the lowest rank is the one that is heard.
  require_agreed(findings,
                 agreed(world, [&] { fail(ExitCode::kUsage, "this is rank {}", world.rank()); }),
                 ExitCode::kUsage, "rank 0: this is rank 0");
  require_agreed(findings,
                 agreed(world,
                        [&] {
                          if (world.rank() == 0) {
                            throw std::runtime_error("out of luck");
                          }
                        }),
                 ExitCode::kPeer, "rank 0: unexpected failure: out of luck");
  // What all hold already passes through once, unchanged.
  require_agreed(findings,
                 agreed(world, [] { throw AgreedError(ExitCode::kData, "known to all"); }),
                 ExitCode::kData, "known to all");
  // What a part of the ranks holds already reaches the others.
  const auto part_fails = [&] {
    if (world.rank() == last) {
      throw AgreedError(ExitCode::kPeer, "known to a part");
    }
  };
  require_agreed(findings, agreed(world, part_fails, agree_on_parts), ExitCode::kPeer,
                 fmt::format("rank {}: known to a part", last));
}

void unequal_plans_are_named(Communicator& world, Findings& findings) {
  std::vector<PlanItem> items{{"config", 1}, {"grid", 2}, {"schedule", 3}};
  agree_plan(world, [&] { return items; });
  if (world.size() == 1) {
    return;
  }
  if (world.rank() == world.size() - 1) {
    items[1].hash = 99;
  }
  std::string text;
  try {
    agree_plan(world, [&] { return items; });
  } catch (const AgreedError& error) {
    findings.require_that(error.code() == ExitCode::kUsage, "exit code of unequal plans");
    text = error.what();
  }
  const std::string expected =
      fmt::format("the ranks do not hold the same grid: rank {} of the world differ from rank 0",
                  world.size() - 1);
  findings.require_that(text.find(expected) == 0, text);
}

void a_wait_times_out(Communicator& world, Findings& findings) {
  if (world.size() == 1) {
    return;
  }
  constexpr double kTimeoutSeconds = 0.3;
  const std::int64_t last = world.size() - 1;
  const Values sent{42};
  Values received{0};
  Request receive;
  if (world.rank() == last) {
    const Timeout usual = world.timeout();
    world.set_timeout({.seconds = kTimeoutSeconds});
    receive = world.receive(writable(received), 0, Tag::kGradient);
    world.set_timeout(usual);
    const double begin = seconds();
    std::string text;
    try {
      receive.wait();
    } catch (const Error& error) {
      findings.require_that(error.code() == ExitCode::kPeer, "exit code of a timeout");
      text = error.what();
    }
    const double waited = seconds() - begin;
    findings.require_that(waited >= kTimeoutSeconds && waited < kTimeoutSeconds + 5.0,
                          fmt::format("timed out after {} s", waited));
    findings.require_that(
        text.find(fmt::format("receive from rank 0 of the world (this rank is {} there): gradient",
                              last)) != std::string::npos,
        text);
  }
  world.barrier();
  // The message that comes after all still finds its receive.
  if (world.rank() == 0) {
    world.send(readable(sent), last, Tag::kGradient).wait();
  }
  receive.wait();
  findings.require_equal(received[0], world.rank() == last ? 42 : 0, "the late message");
}

}  // namespace

const std::vector<CommCase>& comm_cases() {
  static const std::vector<CommCase> kCases{
      {"messages_arrive_in_order", messages_arrive_in_order},
      {"exchanges_are_one_request", exchanges_are_one_request},
      {"collectives_reach_all", collectives_reach_all},
      {"nobody_leaves_a_barrier_before_all_are_there",
       nobody_leaves_a_barrier_before_all_are_there},
      {"groups_follow_the_grid", groups_follow_the_grid},
      {"failures_are_agreed_on", failures_are_agreed_on},
      {"unequal_plans_are_named", unequal_plans_are_named},
      {"sums_have_the_same_bits_on_every_number_of_ranks",
       sums_have_the_same_bits_on_every_number_of_ranks},
      {"the_library_sums", the_library_sums},
      {"a_wait_times_out", a_wait_times_out}};
  return kCases;
}

std::string run_case(const CommCase& comm_case, Communicator& world) {
  Findings findings;
  comm_case.body(world, findings);
  std::string report;
  const std::vector<std::string> all =
      world.all_gather_texts(fmt::format("{}", fmt::join(findings.texts(), "\n")));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) {
      report += fmt::format("{}, rank {} of {}: {}\n", comm_case.name, r, all.size(), all[r]);
    }
  }
  return report;
}

}  // namespace strata::comm::test
