/* colours.c - edge colouring of bipartite graphs, by Koenig's proof that the largest degree is enough.
 *
 * An edge takes the lowest colour that is free at both of its ends. Where there is none, a is free at its
 * left end and b at its right one. From the right end a path leads on whose edges have the colours
 * a, b, a, .. in turn. It cannot come to the left end: that would be by an edge of colour a, which is
 * free there. So the two colours are exchanged along the path, after which a is free at both ends. */
#include <stdlib.h>
#include <string.h>

#include "../base/memory.h"
#include "plan.h"

typedef struct edge {
  int32_t end[2]; /* nodes: left, right */
  int32_t colour;
} edge;

typedef struct graph {
  int32_t nodes, edges, colours; /* nodes of both sides that have edges */
  size_t words;                  /* of a node's bits */
  edge *edge;
  int32_t *at;    /* [nodes, colours]: the edge of that colour, counted from 1; 0 for none */
  uint64_t *free; /* [nodes, words]: a bit for each colour that is free */
  int32_t *path;  /* [nodes] */
} graph;

static void graph_free(graph *g) {
  ms_free(g->edge);
  ms_free(g->at);
  ms_free(g->free);
  ms_free(g->path);
}

/* Numbers the nodes that have edges, left and right ones apart, and finds the largest degree. */
static ms_status read_edges(graph *g, int32_t nodes, const int32_t *from, const int32_t *to) {
  int32_t *number;
  MS_TRY(ms_alloc(sizeof *number * 4 * (size_t)nodes, "plan", (void **)&number));
  int32_t *degree = number + 2 * (size_t)nodes;
  for (int32_t i = 0; i < g->edges; i++) {
    int32_t name[2] = {from[i], nodes + to[i]};
    for (int s = 0; s < 2; s++) {
      if (!number[name[s]]) number[name[s]] = ++g->nodes;
      g->edge[i].end[s] = number[name[s]] - 1;
      if (++degree[name[s]] > g->colours) g->colours = degree[name[s]];
    }
    g->edge[i].colour = -1;
  }
  ms_free(number);
  return MS_OK;
}

static ms_status graph_new(graph *g, int32_t nodes, int32_t edges, const int32_t *from,
                           const int32_t *to) {
  g->edges = edges;
  MS_TRY(ms_alloc(sizeof *g->edge * (size_t)edges, "plan", (void **)&g->edge));
  MS_TRY(read_edges(g, nodes, from, to));
  g->words = ((size_t)g->colours + 63) / 64;
  size_t n = (size_t)g->nodes;
  MS_TRY(ms_alloc(sizeof *g->at * n * (size_t)g->colours, "plan", (void **)&g->at));
  MS_TRY(ms_alloc(sizeof *g->path * n, "plan", (void **)&g->path));
  MS_TRY(ms_alloc(sizeof *g->free * n * g->words, "plan", (void **)&g->free));
  for (size_t i = 0; i < n; i++)
    for (int32_t c = 0; c < g->colours; c++) g->free[i * g->words + c / 64] |= 1ull << c % 64;
  return MS_OK;
}

static int32_t *at(const graph *g, int32_t node, int32_t colour) {
  return &g->at[(size_t)node * (size_t)g->colours + (size_t)colour];
}

/* Enters an edge with its colour at both ends, or takes it out. */
static void enter(graph *g, int32_t i, int in) {
  const edge *e = &g->edge[i];
  for (int s = 0; s < 2; s++) {
    uint64_t *word = &g->free[(size_t)e->end[s] * g->words + (size_t)e->colour / 64];
    uint64_t bit = 1ull << e->colour % 64;
    *at(g, e->end[s], e->colour) = in ? i + 1 : 0;
    *word = in ? *word & ~bit : *word | bit;
  }
}

/* The lowest colour that is free at both nodes, or -1. */
static int32_t common(const graph *g, int32_t u, int32_t v) {
  const uint64_t *a = g->free + (size_t)u * g->words, *b = g->free + (size_t)v * g->words;
  for (size_t w = 0; w < g->words; w++)
    if (a[w] & b[w]) return (int32_t)(64 * w) + __builtin_ctzll(a[w] & b[w]);
  return -1;
}

/* Exchanges colours a and b along the path that leaves `node` by an edge of colour a. */
static void exchange(graph *g, int32_t node, int32_t a, int32_t b) {
  int32_t n = 0;
  for (int32_t c = a, i; (i = *at(g, node, c)) != 0; c = a + b - c) {
    const edge *e = &g->edge[i - 1];
    g->path[n++] = i - 1;
    node = e->end[0] + e->end[1] - node;
  }
  for (int32_t k = 0; k < n; k++) enter(g, g->path[k], 0);
  for (int32_t k = 0; k < n; k++) {
    edge *e = &g->edge[g->path[k]];
    e->colour = a + b - e->colour;
    enter(g, g->path[k], 1);
  }
}

static void colour_edge(graph *g, int32_t i) {
  edge *e = &g->edge[i];
  e->colour = common(g, e->end[0], e->end[1]);
  if (e->colour < 0) {
    int32_t a = common(g, e->end[0], e->end[0]), b = common(g, e->end[1], e->end[1]);
    exchange(g, e->end[1], a, b);
    e->colour = a;
  }
  enter(g, i, 1);
}

ms_status ms_colour_edges(int32_t nodes, int32_t edges, const int32_t *from, const int32_t *to,
                          int32_t *colour, int32_t *colours) {
  graph g = {0};
  *colours = 0;
  ms_status st = graph_new(&g, nodes, edges, from, to);
  if (st == MS_OK) {
    for (int32_t i = 0; i < edges; i++) colour_edge(&g, i);
    for (int32_t i = 0; i < edges; i++) colour[i] = g.edge[i].colour;
    *colours = g.colours;
  }
  graph_free(&g);
  return st;
}
