#!/usr/bin/perl
# Makes a CSV of statistics of this machine's own files: how often each byte value occurs in a block of 1024
# bytes, and what kind of file the block is from. The same files give the same table.
#   jobs/setup/file-kinds.pl > file-kinds.csv
use strict;
use warnings;

my $block_bytes       = 1024;
my $blocks_a_file     = 10;
my $blocks_a_kind     = 2500;
my @kinds = (
    ["machine code",  "/usr/lib",         qr{\.so(\.[0-9.]+)?$}],
    ["C header",      "/usr/include",     qr{\.(h|hpp)$}],
    ["CMake script",  "/usr/share/cmake", qr{\.cmake$}],
    ["licence text",  "/usr/share/doc",   qr{/copyright$}],
);

# A number that mixes the order of paths, the same each time (32-bit FNV-1a).
sub mixed {
    my $hash = 2166136261;
    $hash = (($hash ^ $_) * 16777619) & 0xffffffff for unpack("C*", $_[0]);
    return $hash;
}

# Regular files below a directory; links are passed over, so that none is met twice.
sub files_below {
    my ($directory, $pattern, $found) = @_;
    opendir(my $handle, $directory) or return;
    for my $name (readdir $handle) {
        next if $name eq "." || $name eq "..";
        my $path = "$directory/$name";
        next if -l $path;
        if    (-d _) { files_below($path, $pattern, $found) }
        elsif (-f _ && -s _ >= $block_bytes && $path =~ $pattern) { push @$found, $path }
    }
    closedir $handle;
}

my @rows;
for my $kind (@kinds) {
    my ($name, $root, $pattern) = @$kind;
    my @files;
    files_below($_, $pattern, \@files) for glob "$root*";
    my $taken = 0;
    my %place = map { $_ => mixed($_) } @files;
    for my $path (sort { $place{$a} <=> $place{$b} || $a cmp $b } @files) {
        last if $taken >= $blocks_a_kind;
        open(my $file, "<:raw", $path) or next;
        my $blocks = int((-s $path) / $block_bytes);
        my $step   = $blocks > $blocks_a_file ? $blocks / $blocks_a_file : 1;
        for (my $at = 0; $at < $blocks && $taken < $blocks_a_kind; $at += $step) {
            seek($file, int($at) * $block_bytes, 0) && read($file, my $block, $block_bytes) == $block_bytes or last;
            my @counts = (0) x 256;
            ++$counts[$_] for unpack("C*", $block);
            push @rows, [mixed("row of $path"), join(",", @counts, $name)];
            ++$taken;
        }
    }
    if ($taken < 500) {
        die "file-kinds.pl: only $taken blocks of $name found below $root; is jobs/setup/install-packages.sh done?\n";
    }
    print STDERR "$name: $taken blocks from $root\n";
}

# Blocks of one file stay together, so that at most one file is in both splits.
print join(",", map({ "byte_$_" } 0 .. 255), "kind"), "\n";
print "$_->[1]\n" for sort { $a->[0] <=> $b->[0] || $a->[1] cmp $b->[1] } @rows;
