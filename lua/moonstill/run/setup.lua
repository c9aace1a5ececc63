--- What a recipe opens before it learns, by the keys that recipes have: the student and its
--- teachers, the tokenizer, the data to learn from and to validate with. Each is checked against
--- the others before the first step.
---
---   local o = ms.setup(cfg, { teachers = { cfg.teacher }, on = cfg.kd.on })
---   local run = ms.run.open(cfg, { student = o.student, data = o.train })

local check = require 'moonstill.base.check'
local chats = require 'moonstill.text.chat'
local config = require 'moonstill.run.config'
local dataset = require 'moonstill.data.dataset'
local fail = require 'moonstill.base.fail'
local grids = require 'moonstill.base.grid'
local model = require 'moonstill.model.model'
local options_of = require 'moonstill.base.options'
local strict = require 'moonstill.base.strict'

local M = {}

--- What a recipe learns with: `ms.setup` opens it.
--- @class ms_setup
--- @field student ms_model the model that learns
--- @field teachers ms_model[] in the order of their folders
--- @field chat ms_chat the tokenizer of all of them, and how turns are written
--- @field train ms_dataset what is learnt from
--- @field valid? ms_dataset what validates, where the configuration names it
--- @field vocab integer how many ids they share
--- @field carry string the folder whose tokenizer goes along with the student
local class = strict.class('setup', {}, { valid = true })

local KNOWN = { teachers = true, on = true, filter = true, map = true }

-- A recipe need not have all of these keys.
local function key(cfg, name) return rawget(cfg, name) end

local function check_student(cfg)
  local layers = key(cfg, 'layers') or 0
  if not key(cfg, 'student') and layers == 0 then
    config.refuse "'student' must be given, or 'layers' to make one of the teacher's"
  elseif key(cfg, 'student') and layers ~= 0 then
    config.refuse "'layers' makes a student of the teacher's layers: not beside 'student'"
  end
end

-- How the configuration lays out ranks.
local function open_grid(given)
  local ok, grid = fail.pcall(grids.open, given)
  return ok and grid or config.refuse(tostring(grid))
end

-- Where it says nothing of teachers, they lie where the student does.
local function teacher_grid(cfg, grid)
  local own = key(cfg, 'teacher_grid')
  if not own or not (own.dp or own.ranks or own.tp ~= 1) then return grid end
  return open_grid(own)
end

-- One whose layers make the student is opened before it.
local function open_models(self, cfg, folders)
  local grid = open_grid(key(cfg, 'grid'))
  local held = { train = true, dtype = cfg.dtype, device = cfg.device,
    recompute = key(cfg, 'recompute'), frozen = key(cfg, 'frozen') }
  local taught = teacher_grid(cfg, grid)
  local function open_teacher(i)
    local student = rawget(self, 'student') -- none yet where it is made of a teacher's layers
    self.teachers[i] = model.open(folders[i], { device = cfg.device, grid = taught,
      vocab_cut = student and student:info().vocab })
  end
  if cfg.student then
    held.grid = grid
    self.student = model.open(cfg.student, held)
  else
    held.layers = cfg.layers
    open_teacher(1)
    self.student = model.shrink(self.teachers[1], held)
  end
  for i = #self.teachers + 1, #folders do open_teacher(i) end
end

local function open_data(self, cfg, options)
  local models = { self.student, unpack(self.teachers) }
  check.table('setup', 'cfg.data', cfg.data)
  cfg.data.max_tokens = self.chat:longest(cfg.data.max_tokens, unpack(models))
  self.train, self.valid = dataset.sets(cfg.data, self.chat, { seed = cfg.seed,
    filter = options.filter, map = options.map })
  self.train:fits(unpack(models))
  self.train:check_counts(options.on or 'response')
  if not self.valid then return end
  self.valid:fits(unpack(models))
  self.valid:check_counts 'response'
end

local function share_ids(self, cfg)
  local kd = key(cfg, 'kd')
  self.vocab = self.chat:vocab(self.student, kd and kd.vocab or 0, unpack(self.teachers))
  if not kd then return end
  kd.vocab = self.vocab
  if kd.target == 'topk' and kd.k > kd.vocab then
    config.refuse(("'kd.k' is %d, but the models share %d ids"):format(kd.k, kd.vocab))
  end
end

--- Opens what a configuration names: `student`, or `layers` of the first teacher; `data`; with what
--- else it has of `dtype`, `device`, `recompute`, `frozen`, `seed`; models lie over ranks as `grid`
--- says, and teachers as `teacher_grid`, where it is given. What the models have in common is
--- entered in it: `data.max_tokens` is no longer than their contexts, `kd.vocab` the ids that all
--- of them have. Tokenizers that differ are an error before any weights are read.
--- @param cfg table what `ms.config` gives
--- @param options? { teachers?: string[], on?: string, filter?: function, map?: function }
---   teachers: their folders; on: the positions that are learnt, 'response' unless given; filter,
---   map: as for `ms.dataset.open`
--- @return ms_setup
function M.open(cfg, options)
  options = options_of.known('setup', KNOWN, options)
  local folders = options.teachers or {}
  check.table('setup', 'cfg', cfg)
  check.table('setup', 'teachers', folders)
  check_student(cfg)
  local self = setmetatable({ carry = cfg.student or folders[1], teachers = {} }, class)
  self.chat = chats.open(self.carry, folders)
  open_models(self, cfg, folders)
  open_data(self, cfg, options)
  share_ids(self, cfg)
  return self
end

--- The same as `open`.
--- @param cfg table
--- @param options? table
--- @return ms_setup
local function call(_, cfg, options) return M.open(cfg, options) end

return setmetatable(M, { __call = call })
