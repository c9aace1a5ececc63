/* transfer_plan.c - plans of transfers, carried out message by message: every row that is needed arrives
 * once, nothing else is sent, and no order of posting makes ranks wait for each other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/memory.h"
#include "core/group/plan.h"
#include "tests/support/test.h"

/* ---- layouts and steps ---- */

enum { MOST_RANKS = 4096, MOST_SAMPLES = 20000 };

typedef struct layout {
  int32_t ranks, dp[2], tp[2], rank[2][MOST_RANKS], machine[MOST_RANKS];
} layout;

typedef struct step {
  int32_t n, rows[MOST_SAMPLES], from[MOST_SAMPLES], to[MOST_SAMPLES];
} step;

static layout l;
static step s;
static int64_t plans_seen, messages_seen;

static uint64_t random_state = 1;
static int32_t below(int32_t n) { /* a xorshift generator: 0 .. n-1 */
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (int32_t)(random_state % (uint64_t)n);
}

static int32_t size_of(int side) { return l.dp[side] * l.tp[side]; }

/* Ranks first, first + stride, .. in that order. */
static void place(int side, int32_t dp, int32_t tp, int32_t first, int32_t stride) {
  l.dp[side] = dp, l.tp[side] = tp;
  for (int32_t i = 0; i < dp * tp; i++) {
    l.rank[side][i] = first + i * stride;
    if (l.rank[side][i] >= l.ranks) l.ranks = l.rank[side][i] + 1;
  }
}

static void shuffle(int32_t *x, int32_t n) {
  for (int32_t i = n - 1; i > 0; i--) {
    int32_t k = below(i + 1), t = x[i];
    x[i] = x[k], x[k] = t;
  }
}

/* Some of all ranks in any order. */
static void place_at_random(int side, int32_t dp, int32_t tp) {
  int32_t all[MOST_RANKS];
  for (int32_t r = 0; r < l.ranks; r++) all[r] = r;
  shuffle(all, l.ranks);
  l.dp[side] = dp, l.tp[side] = tp;
  memcpy(l.rank[side], all, sizeof *all * (size_t)(dp * tp));
}

/* Samples of 0 to `most` rows, many of them of none, some that nobody needs. */
static void make_step(int32_t n, int32_t most) {
  s.n = n;
  for (int32_t i = 0; i < n; i++) {
    s.rows[i] = below(4) ? below(most + 1) : 0;
    s.from[i] = below(l.dp[0]);
    s.to[i] = below(16) ? below(l.dp[1]) : -1;
  }
}

static ms_status make_plan(ms_plan **plan) {
  ms_plan_side from = {l.dp[0], l.tp[0], l.rank[0]}, to = {l.dp[1], l.tp[1], l.rank[1]};
  ms_plan_options o = {.ranks = l.ranks, .machine = l.machine, .within = 4e9, .between = 1e9};
  o.latency = 1e-6;
  return ms_plan_new(&from, &to, &o, plan);
}

/* ---- what a plan says, copied so that it can be broken ---- */

typedef struct view {
  int32_t n, phases[2];
  ms_plan_message *m;
  int32_t *of, *start; /* messages of each rank */
} view;

static view view_of(const ms_plan *plan) {
  view v = {0};
  const ms_plan_message *m = ms_plan_messages(plan, &v.n);
  v.m = malloc(sizeof *m * (size_t)(v.n + 1));
  if (v.n) memcpy(v.m, m, sizeof *m * (size_t)v.n);
  v.of = calloc(2 * (size_t)v.n + 1, sizeof *v.of);
  v.start = calloc((size_t)l.ranks + 1, sizeof *v.start);
  for (int stage = 0; stage < 2; stage++) v.phases[stage] = ms_plan_phases(plan, stage);
  for (int32_t r = 0; r < l.ranks; r++) {
    int32_t count;
    const int32_t *list = ms_plan_of_rank(plan, r, &count);
    v.start[r + 1] = v.start[r] + count;
    if (v.start[r + 1] > 2 * v.n) abort(); /* more than all messages have ends */
    if (count) memcpy(v.of + v.start[r], list, sizeof *list * (size_t)count);
  }
  return v;
}

static void view_free(view *v) {
  free(v->m);
  free(v->of);
  free(v->start);
}

/* ---- the simulator: each part returns what is wrong, or NULL ---- */

/* The lists of both sides of every message agree, and are in the order of all messages. */
static const char *check_lists(const view *v) {
  int32_t *ends = calloc((size_t)v->n + 1, sizeof *ends);
  const char *why = v->start[l.ranks] == 2 * v->n ? NULL : "a list lacks a message";
  for (int32_t r = 0; r < l.ranks && !why; r++)
    for (int32_t k = v->start[r]; k < v->start[r + 1] && !why; k++) {
      const ms_plan_message *m = &v->m[v->of[k]];
      if (m->from != r && m->to != r) why = "a list has another's message";
      if (k > v->start[r] && v->of[k] <= v->of[k - 1]) why = "a list is out of order";
      ends[v->of[k]]++;
    }
  for (int32_t i = 0; i < v->n && !why; i++)
    if (ends[i] != 2) why = "a message is not on both sides";
  free(ends);
  return why;
}

/* In a phase nobody sends or receives twice, and there are as many phases as the busiest rank has messages. */
static const char *check_phases(const view *v) {
  const char *why = NULL;
  for (int stage = 0; stage < 2; stage++) {
    int32_t phases = v->phases[stage], most = 0;
    size_t room = (size_t)l.ranks * (size_t)(phases + 1);
    char *seen = calloc(2 * room, 1);
    int32_t *degree = calloc(2 * (size_t)l.ranks, sizeof *degree);
    for (int32_t i = 0; i < v->n; i++) {
      const ms_plan_message *m = &v->m[i];
      if (m->stage != stage) continue;
      if (m->phase < 0 || m->phase >= phases) {
        why = "a phase that there is not";
        continue;
      }
      size_t at = (size_t)m->phase * (size_t)l.ranks;
      if (seen[at + (size_t)m->from]++) why = "a rank sends twice in a phase";
      if (seen[room + at + (size_t)m->to]++) why = "a rank receives twice in a phase";
      int32_t sends = ++degree[m->from], receives = ++degree[l.ranks + m->to];
      if (sends > most) most = sends;
      if (receives > most) most = receives;
    }
    if (most != phases && !why) why = "not as few phases as can be";
    free(seen);
    free(degree);
  }
  return why;
}

/* Who has which sample: [ranks][samples]. */
static char *first_state(const int32_t *sender) {
  char *has = calloc((size_t)l.ranks * (size_t)(s.n + 1), 1);
  for (int32_t r = 0; r < l.ranks; r++)
    for (int32_t i = 0; i < s.n; i++)
      has[(size_t)r * (size_t)s.n + (size_t)i] = sender[r] == s.from[i];
  return has;
}

/* Carries out a message. */
static const char *deliver(const ms_plan_message *m, char *has, const int32_t *sender,
                           const int32_t *receiver) {
  int64_t rows = 0;
  if (m->from == m->to) return "a message to oneself";
  if (m->stage == MS_PLAN_SEND ? sender[m->from] < 0 : receiver[m->from] != receiver[m->to])
    return "a message between the wrong ranks";
  if (m->samples < 1) return "an empty message";
  for (int32_t k = 0; k < m->samples; k++) {
    int32_t i = m->sample[k];
    if (i < 0 || i >= s.n || !s.rows[i] || (k && i <= m->sample[k - 1])) return "no such sample";
    if (receiver[m->to] < 0 || s.to[i] != receiver[m->to]) return "a sample that is not needed";
    if (m->stage == MS_PLAN_SEND && sender[m->from] != s.from[i]) return "sent by another model";
    if (!has[(size_t)m->from * (size_t)s.n + (size_t)i]) return "a rank sends what it has not";
    if (has[(size_t)m->to * (size_t)s.n + (size_t)i]++) return "a sample comes twice";
    rows += s.rows[i];
  }
  return rows == m->rows ? NULL : "rows are counted wrongly";
}

/* Whether a sample was sent to a model once, or not at all where one of its ranks had it. */
static const char *check_entries(const view *v, const int32_t *sender, const int32_t *receiver) {
  const char *why = NULL;
  int32_t *sent = calloc((size_t)s.n + 1, sizeof *sent);
  for (int32_t k = 0; k < v->n; k++)
    for (int32_t j = 0; v->m[k].stage == MS_PLAN_SEND && j < v->m[k].samples; j++)
      sent[v->m[k].sample[j]]++;
  char *common = calloc((size_t)(l.dp[0] * l.dp[1]), 1); /* models that share a rank */
  for (int32_t r = 0; r < l.ranks; r++)
    if (sender[r] >= 0 && receiver[r] >= 0) common[sender[r] * l.dp[1] + receiver[r]] = 1;
  for (int32_t i = 0; i < s.n; i++) {
    int needed = s.rows[i] > 0 && s.to[i] >= 0 && !common[s.from[i] * l.dp[1] + s.to[i]];
    if (sent[i] != needed) why = "a sample enters a model more or less than once";
  }
  free(sent);
  free(common);
  return why;
}

static const char *check_needs(const char *has, const int32_t *receiver) {
  for (int32_t r = 0; r < l.ranks; r++)
    for (int32_t i = 0; i < s.n; i++)
      if (receiver[r] >= 0 && s.rows[i] && s.to[i] == receiver[r] &&
          !has[(size_t)r * (size_t)s.n + (size_t)i])
        return "a rank lacks a sample";
  return NULL;
}

/* All ranks go through their lists; a message passes when both of its sides wait for it. With `pairs` a rank
 * may wait for a send and a receive of the same phase together. */
static const char *carry_out(const view *v, int pairs, const int32_t *sender,
                             const int32_t *receiver) {
  const char *why = NULL;
  char *has = first_state(sender), *done = calloc((size_t)v->n + 1, 1);
  int32_t *at = malloc(sizeof *at * (size_t)l.ranks), left = v->n, moved = 1;
  memcpy(at, v->start, sizeof *at * (size_t)l.ranks);
  while (moved && left && !why) {
    moved = 0;
    for (int32_t r = 0; r < l.ranks && !why; r++) {
      while (at[r] < v->start[r + 1] && done[v->of[at[r]]]) at[r]++;
      for (int32_t k = at[r]; k < v->start[r + 1] && !why; k++) {
        const ms_plan_message *m = &v->m[v->of[k]], *first = &v->m[v->of[at[r]]];
        if (k > at[r] && !(pairs && m->stage == first->stage && m->phase == first->phase)) break;
        int32_t other = m->from == r ? m->to : m->from;
        while (at[other] < v->start[other + 1] && done[v->of[at[other]]]) at[other]++;
        int waits = 0;
        for (int32_t o = at[other]; o < v->start[other + 1]; o++) {
          const ms_plan_message *theirs = &v->m[v->of[at[other]]];
          if (o > at[other] && !(pairs && v->m[v->of[o]].stage == theirs->stage &&
                                 v->m[v->of[o]].phase == theirs->phase))
            break;
          waits |= v->of[o] == v->of[k];
        }
        if (!waits || done[v->of[k]]) continue;
        why = deliver(m, has, sender, receiver);
        done[v->of[k]] = 1, left--, moved = 1;
      }
    }
  }
  if (!why && left) why = "ranks wait for each other in a circle";
  if (!why) why = check_needs(has, receiver);
  free(has);
  free(done);
  free(at);
  return why;
}

static int32_t *models_of(int side) {
  int32_t *model = malloc(sizeof *model * (size_t)l.ranks);
  for (int32_t r = 0; r < l.ranks; r++) model[r] = -1;
  for (int32_t i = 0; i < size_of(side); i++) model[l.rank[side][i]] = i / l.tp[side];
  return model;
}

static const char *simulate(const view *v) {
  int32_t *sender = models_of(0), *receiver = models_of(1);
  const char *why = check_lists(v);
  if (!why) why = check_phases(v);
  if (!why) why = carry_out(v, 0, sender, receiver);
  if (!why) why = carry_out(v, 1, sender, receiver);
  if (!why) why = check_entries(v, sender, receiver);
  free(sender);
  free(receiver);
  return why;
}

/* ---- loads and predictions ---- */

/* Rows that ranks send into models, or receive so, are spread: the sender's as a list of pieces can be, whose
 * largest one may be too much; the receiver's to less than one more sample. */
static const char *check_spread(const view *v) {
  int64_t *rows[2], most_piece = 0;
  int32_t most_sample = 0;
  for (int side = 0; side < 2; side++) rows[side] = calloc((size_t)l.ranks, sizeof *rows[side]);
  for (int32_t i = 0; i < s.n; i++)
    if (s.rows[i] > most_sample) most_sample = s.rows[i];
  for (int32_t k = 0; k < v->n; k++) {
    if (v->m[k].stage != MS_PLAN_SEND) continue;
    rows[0][v->m[k].from] += v->m[k].rows, rows[1][v->m[k].to] += v->m[k].rows;
    if (v->m[k].rows > most_piece) most_piece = v->m[k].rows;
  }
  int wrong = 0;
  for (int side = 0; side < 2; side++)
    for (int32_t d = 0; d < l.dp[side]; d++) {
      int64_t sum = 0, most = 0;
      for (int32_t t = 0; t < l.tp[side]; t++) {
        int64_t x = rows[side][l.rank[side][d * l.tp[side] + t]];
        sum += x, most = x > most ? x : most;
      }
      wrong |= most * l.tp[side] > sum + (side ? most_sample : most_piece) * l.tp[side];
    }
  for (int side = 0; side < 2; side++) free(rows[side]);
  return wrong ? "some ranks have too much to do" : NULL;
}

static double seconds_of(const ms_plan_message *m, int64_t bytes) {
  double speed = l.machine[m->from] == l.machine[m->to] ? 4e9 : 1e9;
  return 1e-6 + (double)(m->rows * bytes) / speed;
}

/* A rank does one thing at a time each way, in its order; the whole takes at least as long as the busiest rank,
 * and at most as long as if phases were barriers. */
static const char *check_times(ms_plan *plan) {
  const char *why = NULL;
  double seconds, most = 0, phases = 0, slowest = 0, last = 0;
  if (ms_plan_predict(plan, 520, &seconds) != MS_OK) return "no prediction";
  view v = view_of(plan);
  for (int32_t k = 0; k < v.n; k++) {
    const ms_plan_message *m = &v.m[k];
    if (k && (m->phase != m[-1].phase || m->stage != m[-1].stage)) phases += slowest, slowest = 0;
    slowest = fmax(slowest, seconds_of(m, 520));
    last = fmax(last, m->ends);
    if (fabs(m->ends - m->begins - seconds_of(m, 520)) > 1e-12)
      why = "a message takes another time";
  }
  phases += slowest;
  for (int32_t r = 0; r < l.ranks; r++) {
    double busy[2] = {0, 0}, free_at[2] = {0, 0}, entered = 0;
    for (int32_t i = v.start[r]; i < v.start[r + 1]; i++) {
      const ms_plan_message *m = &v.m[v.of[i]];
      int way = m->to == r;
      if (m->begins < free_at[way]) why = "a rank does two things at once";
      if (!way && m->stage == MS_PLAN_EXCHANGE && m->begins < entered) why = "given on too early";
      if (way && m->stage == MS_PLAN_SEND) entered = m->ends;
      free_at[way] = m->ends, busy[way] += seconds_of(m, 520);
    }
    most = fmax(most, fmax(busy[0], busy[1]));
  }
  if (seconds != last) why = "not the last end";
  if (seconds < most * (1 - 1e-9) || seconds > phases * (1 + 1e-9)) why = "outside its bounds";
  view_free(&v);
  return why;
}

/* ---- plans of a layout ---- */

/* Fills a plan and looks at it from all sides; says where it is wrong. */
static int plan_holds(ms_plan *plan, int spread) {
  const char *why = NULL;
  if (ms_plan_fill(plan, s.n, s.rows, s.from, s.to) != MS_OK) {
    why = ms_last_error();
  } else {
    view v = view_of(plan);
    why = simulate(&v);
    if (!why && spread) why = check_spread(&v);
    if (!why) why = check_times(plan);
    plans_seen++, messages_seen += v.n;
    view_free(&v);
  }
  if (why)
    printf("  dp %d x tp %d to dp %d x tp %d, %d ranks, %d samples: %s\n", l.dp[0], l.tp[0],
           l.dp[1], l.tp[1], l.ranks, s.n, why);
  return !why;
}

/* One plan, filled several times: with nothing, few samples, many, and large ones. */
static int layout_holds(int fills) {
  static const int32_t samples[] = {24, 3, 0, 100}, rows[] = {50, 3, 9, 2000};
  ms_plan *plan;
  int right = make_plan(&plan) == MS_OK, one_machine = 1;
  for (int32_t r = 0; r < l.ranks; r++) one_machine &= l.machine[r] == l.machine[0];
  for (int k = 0; k < fills && right; k++) {
    make_step(samples[k % 4], rows[k % 4]);
    right = plan_holds(plan, one_machine);
  }
  if (right) ms_plan_free(plan);
  return right;
}

static void machines_of(int32_t each) {
  for (int32_t r = 0; r < MOST_RANKS; r++) l.machine[r] = r / each;
}

/* Every pair of grids up to 6 x 6: side by side, on the same ranks, overlapping, in strides, in each other's
 * gaps, backwards. */
static int every_grid(void) {
  for (int32_t k = 0; k < 6 * 6 * 6 * 6; k++) {
    int32_t dp = k % 6 + 1, tp = k / 6 % 6 + 1, dp2 = k / 36 % 6 + 1, tp2 = k / 216 + 1;
    const int32_t first[][4] = {
        {0, 1, dp * tp, 1}, {0, 1, 0, 1},           {0, 1, dp * tp / 2, 1},       {0, 2, 1, 2},
        {0, 2, 0, 3},       {0, 2, dp * tp / 2, 1}, {dp2 * tp2 * 2 - 1, 1, 0, 2}, {5, 1, 3, 2}};
    for (size_t c = 0; c < sizeof first / sizeof *first; c++) {
      l.ranks = 0;
      place(0, dp, tp, first[c][0], first[c][1]);
      place(1, dp2, tp2, first[c][2], first[c][3]);
      if (!layout_holds(2)) return 0;
    }
  }
  return 1;
}

/* Grids of up to 6 ranks on either side, at every distance from each other. */
static int every_distance(void) {
  for (int32_t n = 1; n <= 6; n++)
    for (int32_t m = 1; m <= 6; m++)
      for (int32_t tp = 1; tp <= n; tp++)
        for (int32_t tp2 = 1; tp2 <= m; tp2++)
          for (int32_t apart = -m; apart <= n && n % tp == 0 && m % tp2 == 0; apart++) {
            l.ranks = 0;
            place(0, n / tp, tp, apart < 0 ? -apart : 0, 1);
            place(1, m / tp2, tp2, apart < 0 ? 0 : apart, 1);
            if (!layout_holds(4)) return 0;
          }
  return 1;
}

/* The k-th way to put n of 4 ranks into an order; 0 when there are fewer ways. */
static int arrange(int side, int32_t n, int32_t k) {
  int32_t rank[4] = {0, 1, 2, 3};
  for (int32_t i = 0; i < n; i++) {
    int32_t j = i + k % (4 - i), t = rank[i];
    k /= 4 - i;
    rank[i] = rank[j], rank[j] = t;
    l.rank[side][i] = rank[i];
  }
  return k == 0;
}

/* Every layout of up to 4 of 4 ranks in every order. */
static int every_order(void) {
  l.ranks = 4;
  for (int32_t n = 1; n <= 4; n++)
    for (int32_t m = 1; m <= 4; m++)
      for (int32_t j = 0; arrange(0, n, j); j++)
        for (int32_t k = 0; arrange(1, m, k); k++)
          for (int32_t tp = 1; tp <= n; tp++)
            for (int32_t tp2 = 1; tp2 <= m; tp2++) {
              if (n % tp || m % tp2) continue;
              l.dp[0] = n / tp, l.tp[0] = tp, l.dp[1] = m / tp2, l.tp[1] = tp2;
              if (!layout_holds(1)) return 0;
            }
  return 1;
}

static int random_ones(int count, int32_t most) {
  for (int k = 0; k < count; k++) {
    int32_t tp = 1 + below(k % 2 ? 8 : most), tp2 = 1 + below(k % 2 ? 8 : most);
    int32_t dp = 1 + below(most / tp), dp2 = 1 + below(most / tp2);
    machines_of(k % 3 ? 1 + below(8) : MOST_RANKS);
    l.ranks = most + below(most + 1);
    place_at_random(0, dp, tp);
    place_at_random(1, dp2, tp2);
    if (!layout_holds(2)) return 0;
  }
  machines_of(MOST_RANKS);
  return 1;
}

/* ---- what the simulator sees ---- */

static int says(const view *v, const char *what) {
  const char *why = simulate(v);
  if (why && !strcmp(why, what)) return 1;
  printf("  the simulator says \"%s\", not \"%s\"\n", why ? why : "nothing", what);
  return 0;
}

/* A plan of two models of two ranks for one of three, whose message `at` can be broken. */
static ms_plan *plan_to_break(void) {
  ms_plan *plan;
  l.ranks = 0;
  place(0, 2, 2, 0, 1);
  place(1, 1, 3, 4, 1);
  s.n = 12;
  for (int32_t i = 0; i < s.n; i++) s.rows[i] = 1 + i % 3, s.from[i] = i % 2, s.to[i] = 0;
  if (make_plan(&plan) != MS_OK || ms_plan_fill(plan, s.n, s.rows, s.from, s.to) != MS_OK) abort();
  return plan;
}

static int32_t first_of(const view *v, int stage) {
  int32_t i = 0;
  while (v->m[i].stage != stage) i++;
  return i;
}

static void sees_what_is_wrong(void) {
  ms_plan *plan = plan_to_break();
  view v = view_of(plan);
  CHECK(!simulate(&v));
  int32_t x = first_of(&v, MS_PLAN_EXCHANGE);
  ms_plan_message *m = &v.m[x], kept = *m;
  m->samples--, m->rows -= s.rows[m->sample[m->samples]];
  CHECK(says(&v, "a rank lacks a sample"));
  *m = kept, m->rows++;
  CHECK(says(&v, "rows are counted wrongly"));
  *m = kept, m->sample = v.m[x + 1].sample, m->samples = v.m[x + 1].samples,
  m->rows = v.m[x + 1].rows;
  CHECK(says(&v, "a rank sends what it has not"));
  *m = kept, m->phase = (m->phase + 1) % v.phases[1];
  CHECK(says(&v, "a rank receives twice in a phase"));
  *m = kept;
  v.phases[1]++;
  CHECK(says(&v, "not as few phases as can be"));
  v.phases[1]--;
  v.start[l.ranks]--;
  CHECK(says(&v, "a list lacks a message"));
  v.start[l.ranks]++;
  view_free(&v);
  ms_plan_free(plan);
}

/* Two ranks that each send first wait for each other; so they do by the simulator, unless send and receive of a
 * phase are posted together. */
static void sees_circles(void) {
  static const int32_t one[] = {0}, other[] = {1};
  ms_plan_message m[] = {
      {.stage = MS_PLAN_EXCHANGE, .from = 0, .to = 1, .samples = 1, .sample = one, .rows = 1},
      {.stage = MS_PLAN_EXCHANGE, .from = 1, .to = 0, .samples = 1, .sample = other, .rows = 1}};
  int32_t of[] = {0, 1, 1, 0}, start[] = {0, 2, 4}, sender[] = {0, 1}, receiver[] = {0, 0};
  view v = {.n = 2, .phases = {0, 1}, .m = m, .of = of, .start = start};
  l.ranks = 0;
  place(0, 2, 1, 0, 1);
  place(1, 1, 2, 0, 1);
  s.n = 2, s.rows[0] = s.rows[1] = 1, s.from[0] = 0, s.from[1] = 1, s.to[0] = s.to[1] = 0;
  const char *why = carry_out(&v, 0, sender, receiver);
  CHECK(why && !strcmp(why, "ranks wait for each other in a circle"));
  CHECK(!carry_out(&v, 1, sender, receiver));
}

/* ---- single cases ---- */

/* Equal grids on the same ranks, each model with what it needs: nothing to send. */
static void nothing_to_send(void) {
  ms_plan *plan;
  int32_t count, n;
  l.ranks = 0;
  place(0, 3, 2, 0, 1);
  place(1, 3, 2, 0, 1);
  make_step(40, 30);
  for (int32_t i = 0; i < s.n; i++) s.to[i] = s.from[i];
  CHECK(make_plan(&plan) == MS_OK);
  CHECK(ms_plan_fill(plan, s.n, s.rows, s.from, s.to) == MS_OK);
  ms_plan_messages(plan, &count);
  ms_plan_of_rank(plan, 0, &n);
  CHECK(count == 0 && n == 0 && ms_plan_phases(plan, 0) == 0 && ms_plan_phases(plan, 1) == 0);
  ms_plan_free(plan);
}

/* A rank of the sender's on the receiver's machine is taken where it is not busier for it. */
static void stays_on_the_machine(void) {
  ms_plan *plan;
  int32_t count;
  l.ranks = 0;
  place(0, 1, 4, 0, 2); /* 0, 2, 4, 6 */
  place(1, 4, 1, 1, 2); /* 1, 3, 5, 7 */
  machines_of(2);
  s.n = 4;
  for (int32_t i = 0; i < 4; i++) s.rows[i] = 10, s.from[i] = 0, s.to[i] = 3 - i;
  CHECK(make_plan(&plan) == MS_OK);
  CHECK(ms_plan_fill(plan, s.n, s.rows, s.from, s.to) == MS_OK);
  const ms_plan_message *m = ms_plan_messages(plan, &count);
  CHECK(count == 4);
  for (int32_t k = 0; k < count; k++) CHECK(m[k].to == m[k].from + 1 && m[k].phase == 0);
  machines_of(MOST_RANKS);
  ms_plan_free(plan);
}

/* Two ranks of four have all samples: each gives half of them to the other two. */
static void gives_on_in_turn(void) {
  ms_plan *plan;
  int32_t count;
  int64_t rows[4] = {0};
  l.ranks = 0;
  place(0, 1, 2, 0, 1);
  place(1, 1, 4, 0, 1);
  s.n = 10;
  for (int32_t i = 0; i < s.n; i++) s.rows[i] = 7, s.from[i] = s.to[i] = 0;
  CHECK(make_plan(&plan) == MS_OK);
  CHECK(ms_plan_fill(plan, s.n, s.rows, s.from, s.to) == MS_OK);
  const ms_plan_message *m = ms_plan_messages(plan, &count);
  for (int32_t k = 0; k < count; k++) {
    CHECK(m[k].stage == MS_PLAN_EXCHANGE);
    rows[m[k].from] += m[k].rows;
  }
  CHECK(count == 4 && rows[0] == 70 && rows[1] == 70);
  ms_plan_free(plan);
}

static int fails_with(ms_status st, const char *what) {
  if (st == MS_EINVAL && strstr(ms_last_error(), what)) return 1;
  printf("  status %d, \"%s\" has no \"%s\"\n", st, ms_last_error(), what);
  return 0;
}

static void refuses(void) {
  ms_plan *plan = NULL;
  int32_t twice[] = {1, 1}, far[] = {0, 9}, rows[] = {1}, from[] = {0}, to[] = {0};
  ms_plan_side good = {1, 1, far}, bad = {1, 2, twice}, none = {0, 1, far};
  ms_plan_options o = {.ranks = 4, .within = 1, .between = 1};
  CHECK(fails_with(ms_plan_new(&bad, &good, &o, &plan), "rank 1 is twice in the sender"));
  bad.rank = far;
  CHECK(fails_with(ms_plan_new(&good, &bad, &o, &plan), "rank 9 of the receiver is not in 0..3"));
  CHECK(fails_with(ms_plan_new(&none, &good, &o, &plan), "the sender has no ranks"));
  o.within = 0;
  CHECK(fails_with(ms_plan_new(&good, &good, &o, &plan), "0 bytes a second"));
  o.within = 1;
  CHECK(!plan && ms_plan_new(&good, &good, &o, &plan) == MS_OK);
  rows[0] = -1;
  CHECK(fails_with(ms_plan_fill(plan, 1, rows, from, to), "sample 0 has -1 rows"));
  rows[0] = 1, from[0] = 1;
  CHECK(fails_with(ms_plan_fill(plan, 1, rows, from, to), "model 1 of the sender's 1"));
  from[0] = 0, to[0] = 1;
  CHECK(fails_with(ms_plan_fill(plan, 1, rows, from, to), "model 1 of the receiver's 1"));
  ms_plan_free(plan);
}

static void counts_bytes(void) {
  int64_t bytes;
  CHECK(ms_plan_row_bytes(MS_TARGET_TOPK, 64, MS_F32, &bytes) == MS_OK && bytes == 64 * 8 + 4);
  CHECK(ms_plan_row_bytes(MS_TARGET_TOPK, 64, MS_BF16, &bytes) == MS_OK && bytes == 64 * 6 + 4);
  CHECK(ms_plan_row_bytes(MS_TARGET_HIDDEN, 576, MS_BF16, &bytes) == MS_OK && bytes == 576 * 2);
  CHECK(ms_plan_row_bytes(MS_TARGET_HIDDEN, 576, MS_F32, &bytes) == MS_OK && bytes == 576 * 4);
  CHECK(ms_plan_row_bytes(MS_TARGET_LOGITS, 97, MS_F32, &bytes) == MS_OK && bytes == 97 * 4);
  CHECK(fails_with(ms_plan_row_bytes(9, 1, MS_F32, &bytes), "9 is no kind"));
  CHECK(fails_with(ms_plan_row_bytes(MS_TARGET_TOPK, 0, MS_F32, &bytes), "rows of 0"));
}

/* Every allocation fails once: what is left is a plan without messages, and no memory. */
static void without_memory(void) {
  int64_t before = ms_test_live();
  l.ranks = 0;
  place(0, 2, 3, 0, 1);
  place(1, 3, 2, 4, 1);
  make_step(30, 20);
  int failed = 1, n;
  for (n = 1; failed && n < 100; n++) {
    ms_plan *plan = NULL;
    double seconds;
    int32_t count = 0;
    ms_test_fail_alloc(n);
    ms_status st = make_plan(&plan);
    if (st == MS_OK) st = ms_plan_fill(plan, s.n, s.rows, s.from, s.to);
    if (st != MS_OK && plan) ms_plan_messages(plan, &count);
    CHECK(count == 0);
    if (st == MS_OK) st = ms_plan_predict(plan, 1, &seconds);
    failed = st == MS_ENOMEM;
    CHECK(failed || st == MS_OK);
    ms_test_fail_alloc(0);
    ms_plan_free(plan);
  }
  CHECK(n > 15 && n < 100 && ms_test_live() == before);
}

/* Seconds of this process's time for a plan of 4,096 ranks, filled once. */
static double seconds_for(int32_t dp, int32_t tp, int32_t dp2, int32_t tp2, int32_t first,
                          int32_t samples) {
  ms_plan *plan;
  double seconds;
  l.ranks = MOST_RANKS;
  place(0, dp, tp, 0, 1);
  place(1, dp2, tp2, first, 1);
  machines_of(8);
  make_step(samples, 500);
  clock_t began = clock();
  CHECK(make_plan(&plan) == MS_OK);
  CHECK(ms_plan_fill(plan, s.n, s.rows, s.from, s.to) == MS_OK);
  CHECK(ms_plan_predict(plan, 516, &seconds) == MS_OK);
  double took = (double)(clock() - began) / CLOCKS_PER_SEC;
  int32_t count;
  ms_plan_messages(plan, &count);
  printf("  dp %d x tp %d to dp %d x tp %d: %d messages in %d and %d phases, %.3f s\n", dp, tp, dp2,
         tp2, count, ms_plan_phases(plan, 0), ms_plan_phases(plan, 1), took);
  view v = view_of(plan);
  CHECK(!check_lists(&v) && !check_phases(&v));
  view_free(&v);
  ms_plan_free(plan);
  machines_of(MOST_RANKS);
  return took;
}

int main(void) {
  TEST("the simulator sees what is wrong");
  sees_what_is_wrong();
  sees_circles();
  TEST("every pair of grids up to 6 x 6, in eight placements");
  CHECK(every_grid());
  TEST("every pair of grids of up to 6 ranks, at every distance");
  CHECK(every_distance());
  TEST("every pair of grids on 4 ranks, in every order");
  CHECK(every_order());
  TEST("grids of up to 64 ranks at random, on several machines");
  CHECK(random_ones(4000, 64));
  printf("  %lld plans, %lld messages\n", (long long)plans_seen, (long long)messages_seen);
  TEST("equal grids on the same ranks have nothing to send");
  nothing_to_send();
  TEST("a sender on the receiver's machine is taken");
  stays_on_the_machine();
  TEST("ranks that have samples themselves give them on in turn");
  gives_on_in_turn();
  TEST("what is no layout or no step is refused");
  refuses();
  TEST("bytes of a row");
  counts_bytes();
  TEST("memory that is refused");
  without_memory();
  TEST("a plan for 4,096 ranks takes less than 2 s");
  CHECK(seconds_for(256, 8, 256, 8, 2048, 8192) < 2);
  CHECK(seconds_for(512, 8, 1024, 4, 0, 8192) < 2);
  CHECK(seconds_for(8, 64, 56, 64, 512, 20000) < 2);
  CHECK(seconds_for(1, 1, 4095, 1, 1, 20000) < 2);
  CHECK(seconds_for(2048, 1, 2048, 1, 2048, 20000) < 2);
  CHECK(seconds_for(4, 512, 4, 512, 2048, 8192) < 2);
  return test_end();
}
