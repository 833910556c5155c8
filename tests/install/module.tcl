# Prints what a modulefile sets: module.tcl FILE.
proc module-whatis {text} {}
proc conflict {name} {}
proc module {verb name} { puts "$verb\t$name" }
proc prepend-path {name value} { puts "prepend\t$name\t$value" }
proc append-path {name value} { puts "append\t$name\t$value" }
source [lindex $argv 0]
