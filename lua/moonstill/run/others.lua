--- Ranks that do not have a run's student, but its teacher, or nothing: they run the same recipe,
--- and do not wait for the student unless they are asked what it has given.
---
--- The first rank that has the student writes the others letters, which they read in order when
--- they need them: after each step what came of it; what was validated; and that the run ends, and
--- how. A letter is not waited for, so nobody is held up. At the end the others say what they have
--- sent that nobody has read, and that is read and dropped.

local C = require 'moonstill.C'
local check = require 'moonstill.base.check'
local exit = require 'moonstill.base.exit'
local json = require 'moonstill.base.json'
local ranks = require 'moonstill.base.ranks'
local sorted = require 'moonstill.base.sorted'
local strict = require 'moonstill.base.strict'
local timeline = require 'moonstill.run.timeline'

local M = {}

-- What of a run's state only ranks with the student know.
local TOLD = { loss = true, validation = true, validated = true, validated_first = true,
  tokens = true, skips = true, skipped = true, empty = true, still = true, far = true,
  ruined = true, ruined_by = true, sound = true, levels = true, norm_level = true }

local function letters() return ranks.channels()[1] end

-- JSON has neither NaN nor infinities.
local function pack(x) return type(x) == 'number' and x - x ~= 0 and tostring(x) or x end
local function unpack_number(x) return type(x) == 'string' and tonumber(x) or x end

-- on ranks that have the student -----------------------------------------------------------------

local function write(run, letter)
  if #run.others == 0 or not run.ranks.writes then return end
  local bytes = json.encode(letter)
  for _, rank in ipairs(run.others) do letters():tell(rank, bytes) end
end

--- How lines get to the rank that prints, where that one does not have the student.
--- @param run ms_run
--- @return (fun(line: string))?
function M.printer(run)
  if run.others[1] ~= 0 or not run.ranks.writes then return nil end
  return function(line) letters():tell(0, json.encode { kind = 'say', line = line }) end
end

local function told_of(state)
  local told = {}
  for key in sorted.pairs(TOLD) do told[key] = state[key] end
  return told
end

--- Tells what came of a step.
--- @param run ms_run
--- @param step ms_step
function M.tell_step(run, step)
  if #run.others == 0 then return end
  local means = {}
  for _, name in ipairs(step.tally.names) do
    local mean = step.tally:mean(name)
    means[name] = pack(mean.value)
  end
  write(run, { kind = 'step', step = step.number, loss = pack(step.loss), means = means,
    grad_norm = pack(step.grad_norm), skipped = step.skipped, seconds = step.seconds,
    state = told_of(run.state) })
end

--- Tells what is validated, see `validation`.
--- @param run ms_run
--- @param what string kind of the letter
--- @param content table
function M.tell(run, what, content)
  content.kind = what
  content.state = told_of(run.state)
  write(run, content)
end

-- on the others ----------------------------------------------------------------------------------

--- What a rank without the student knows of a run.
local methods = {}
local class = { __index = methods }

local function next_letter(self)
  local letter
  repeat
    letter = json.decode(letters():hear(self.from), 'letter')
    if letter.kind == 'say' then self.run.grid.world:say(letter.line) end
  until letter.kind ~= 'say'
  if letter.state then
    self.fields = letter.state
    self.fields.loss = unpack_number(self.fields.loss)
  end
  return letter
end

local function absorb(self, letter)
  self.heard = letter.step
  for name, x in sorted.pairs(letter.means) do letter.means[name] = unpack_number(x) end
  letter.loss, letter.grad_norm = unpack_number(letter.loss), unpack_number(letter.grad_norm)
  self.last = letter
end

--- Waits for a letter of a kind; what is told of steps before it is kept. Where the run ends
--- instead, so does this rank.
function methods:expect(kind)
  while true do
    local letter = self.closing or next_letter(self)
    if letter.kind == 'step' and kind ~= 'step' then
      absorb(self, letter)
    elseif letter.kind == kind then
      return letter
    elseif letter.kind == 'close' then
      self.closing = letter
      return self:leave(kind)
    else
      error(('run: the ranks that have the student tell of a %s, this one waits for a %s: all '
        .. 'ranks make the same calls of a run in the same order'):format(letter.kind, kind), 0)
    end
  end
end

--- Waits until what came of a step is known.
--- @param step integer
function methods:wait(step)
  while self.heard < step do absorb(self, self:expect 'step') end
end

--- Waits until the student is at most `depth` steps behind one that begins here.
--- @param step integer
--- @param depth integer
function methods:approach(step, depth) self:wait(step - depth - 1) end

--- Remembers what this rank has sent for a step, for the case that nobody reads it.
--- @param channel integer
--- @param step integer
--- @param messages { to: integer, bytes: integer }[]
function methods:log(channel, step, messages)
  while self.sent[1] and self.sent[1].step <= self.heard do table.remove(self.sent, 1) end
  self.sent[#self.sent + 1] = { channel = channel, step = step, messages = messages }
end

--- What came of the last step that was updated here; nil before the first.
function methods:told()
  self:wait(self.closed)
  return self.last
end

--- Ends where the student's ranks have ended before this one expected it.
function methods:leave(kind)
  local run, letter = self.run, self.closing
  run.state.step = letter.step
  M.drain(run, letter)
  timeline.finish(run)
  run:close()
  if letter.status then exit(letter.status, letter.message) end
  error(('run: the ranks that have the student ended the loop after step %d, this one waits for a '
    .. '%s: all ranks make the same calls of a run in the same order'):format(letter.step, kind), 0)
end

--- Waits for the end of the run on the student's ranks.
function methods:finish()
  local letter = self.closing or self:expect 'close'
  M.drain(self.run, letter)
  timeline.finish(self.run)
  self.run:close()
  if letter.status then exit(letter.status, letter.message) end
end

-- A run's state of which what is told is waited for.
local function state_of(self, given)
  local state = {}
  self.fields = {}
  for key, value in sorted.pairs(given) do
    if TOLD[key] then self.fields[key] = value else state[key] = value end
  end
  return strict.mark('state', setmetatable(state, { __index = function(_, key)
    if not TOLD[key] then return nil end
    self:wait(self.closed)
    return self.fields[key]
  end }))
end

--- @param run ms_run
function M.new(run)
  return setmetatable({ run = run, from = run.grid.ranks[1], closed = 0, heard = 0, fields = {},
    sent = {} }, class)
end

-- the beginning and the end ----------------------------------------------------------------------

local function facts_of(run)
  return { state = run.state, finished = run.finished or false, saved = run.saved }
end

--- Tells all ranks how the run begins, once the ranks with the student have opened it, or why they
--- could not.
--- @param run ms_run
--- @param why? string
function M.agree(run, why)
  local world = run.grid.world
  world:agree(why)
  local first = run.grid.ranks[1]
  local facts = world:from(first, run.ranks.writes and json.encode(facts_of(run)) or nil)
  if run.away then
    facts = json.decode(facts, 'run')
    run.state = state_of(run.away, facts.state)
    run.finished, run.saved = facts.finished or nil, facts.saved
    run.away.closed, run.away.heard = run.state.step, run.state.step
    run:plan_epoch(run.state.epoch)
  end
  if world:same((run.fingerprint or '') .. (run.plan and run.plan:hash() or '')) then return end
  error('run: the ranks have different training data, or other plans of it: are its files the same '
    .. 'on all machines, and seed and batch sizes the same on all ranks?', 0)
end

-- What this rank has sent of each carrier that the student's ranks have not read, for one of them.
local function unread_for(run, rank, read)
  local list = json.array()
  for _, sent in ipairs(run.away.sent) do
    if sent.step > (read[tostring(sent.channel)] or 0) then
      for _, m in ipairs(sent.messages) do
        if m.to == rank then list[#list + 1] = { sent.channel, m.bytes } end
      end
    end
  end
  return list
end

-- On ranks that have the student: what the others have sent ahead.
local function read_unread(run)
  for _, rank in ipairs(run.others) do
    for _, m in ipairs(json.decode(letters():hear(rank), 'letter')) do
      check(C.ms_group_discard(ranks.channels()[m[1]].group, rank, m[2]))
    end
  end
end

--- Has all that is under way read and dropped.
--- @param run ms_run
--- @param letter? table with which the student's ranks have ended
function M.drain(run, letter)
  run:drop_step()
  if run.away then
    for _, rank in ipairs(run.grid.ranks) do
      letters():tell(rank, json.encode(unread_for(run, rank, letter.read)))
    end
  else
    read_unread(run)
  end
  for _, c in ipairs(run.carriers) do c:close() end
  run.carriers = {}
  check(C.ms_letter_settle())
end

--- Ends the run on the ranks that have the student: tells the others.
--- @param run ms_run
--- @param status? integer with which the process ends
--- @param message? string
function M.leave(run, status, message)
  local read = {}
  for _, c in ipairs(run.carriers) do read[tostring(c.channel)] = c.read end
  M.tell(run, 'close', { step = run.state.step, status = status, message = message,
    read = read })
  M.drain(run)
end

return M
