-- Prints what a modulefile sets: module.lua FILE.
help, whatis, conflict = function() end, function() end, function() end
function depends_on(name) print("load", name) end
function prepend_path(name, value) print("prepend", name, value) end
function append_path(name, value) print("append", name, value) end
dofile(arg[1])
