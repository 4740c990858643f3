"""CMake texts, one for each construct or trap, that all come to this: a library `x` of a.cpp and b.cpp."""

from __future__ import annotations

SOURCES = ("a.cpp", "b.cpp", "c.cpp", "sub/d.cpp", "sub/e.h")
"""The files that are there."""

LIBRARIES = (
    "add_library(x a.cpp b.cpp)",
    "add_library(x STATIC EXCLUDE_FROM_ALL a.cpp b.cpp)",
    "ADD_LIBRARY(x)\nTARGET_SOURCES(x PUBLIC a.cpp PRIVATE b.cpp)",
    "set(s a.cpp b.cpp)\nadd_library(x ${s})",
    'set(s "a.cpp;b.cpp")\nadd_library(x ${s})',
    "set(s a)\nset(a_list a.cpp b.cpp)\nadd_library(x ${${s}_list})",
    "set(s b.cpp)\nlist(APPEND s a.cpp)\nadd_library(x ${s})",
    "set(s a b)\nlist(TRANSFORM s APPEND .cpp)\nadd_library(x ${s})",
    "set(s a.cpp b.cpp c.cpp)\nlist(REMOVE_ITEM s c.cpp)\nadd_library(x ${s})",
    "set(s a.cpp b.cpp c.cpp)\nlist(FILTER s EXCLUDE REGEX ^c)\nadd_library(x ${s})",
    "set(s a.cpp b.cpp c.cpp)\nlist(SUBLIST s 0 2 s)\nadd_library(x ${s})",
    "foreach(n a b)\n  list(APPEND s ${n}.cpp)\nendforeach()\nadd_library(x ${s})",
    ("set(n a b)\nforeach(n IN LISTS n)\n list(APPEND s ${n}.cpp)\nendforeach()\nadd_library(x ${s})"),
    (
        "foreach(i RANGE 3)\n"
        " if(i EQUAL 1)\n"
        "  continue()\n"
        " endif()\n"
        " list(APPEND s ${i})\n"
        "endforeach()\n"
        'if(s STREQUAL "0;2;3")\n'
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    (
        "set(i 0)\n"
        "while(i LESS 3)\n"
        " math(EXPR i ${i}+1)\n"
        "endwhile()\n"
        "if(i EQUAL 3)\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "foreach(i RANGE 5 1 -2)\n list(APPEND s ${i})\nendforeach()\n"
    'if(s STREQUAL "5;3;1")\n add_library(x a.cpp b.cpp)\nendif()',
    "foreach(i RANGE 2 1)\n list(APPEND s ${i})\nendforeach()\n"
    'if(s STREQUAL "2;1")\n add_library(x a.cpp b.cpp)\nendif()',
    "set(one a b)\nset(two .cpp .cpp)\nforeach(i IN ZIP_LISTS one two)\n"
    " list(APPEND s ${i_0}${i_1})\nendforeach()\nadd_library(x ${s})",
    "set(s ab cb)\nlist(TRANSFORM s TOUPPER REGEX ^a)\n"
    'if(s STREQUAL "AB;cb")\n add_library(x a.cpp b.cpp)\nendif()',
    "set(s b10 b9 b1)\nlist(SORT s COMPARE NATURAL)\n"
    'if(s STREQUAL "b1;b9;b10")\n add_library(x a.cpp b.cpp)\nendif()',
    'set(s B a)\nlist(SORT s CASE INSENSITIVE)\nif(s STREQUAL "a;B")\n add_library(x a.cpp b.cpp)\nendif()',
    "set(s b/a a/b)\nlist(SORT s COMPARE FILE_BASENAME)\n"
    'if(s STREQUAL "b/a;a/b")\n add_library(x a.cpp b.cpp)\nendif()',
    'string(MAKE_C_IDENTIFIER "1-b" n)\nif(n STREQUAL "_1_b")\n add_library(x a.cpp b.cpp)\nendif()',
    'string(REGEX REPLACE - "\\\\\\\\" n a-b)\nif(n STREQUAL "a\\\\b")\n add_library(x a.cpp b.cpp)\nendif()',
    'if("ab" MATCHES "(a)(b)")\nendif()\nif(CMAKE_MATCH_COUNT EQUAL 2)\n add_library(x a.cpp b.cpp)\nendif()',
    'set(s "a.cpp;\\\nb.cpp")\nadd_library(x ${s})',
    'cmake_parse_arguments(A "" "N" "S" N c.cpp S b.cpp N a.cpp N)\nadd_library(x ${A_N} ${A_S})',
    "function(f)\n set(s c.cpp PARENT_SCOPE)\n add_library(x ${s})\nendfunction()\nset(s a.cpp b.cpp)\nf()",
    'set(kept c.cpp CACHE STRING "")\nset(kept a.cpp b.cpp CACHE INTERNAL "")\nadd_library(x ${kept})',
    'set(n "")\nif(NOT EXISTS "${n}" AND NOT IS_DIRECTORY "${n}")\n add_library(x a.cpp b.cpp)\nendif()',
    'if("3x" EQUAL 3 AND " 3" EQUAL "+3")\n add_library(x a.cpp b.cpp)\nendif()',
    'string(REPLACE "" "c" s "a.cpp;b.cpp")\nadd_library(x ${s})',
    'if("xdz" MATCHES "\\\\d")\n add_library(x a.cpp b.cpp)\nendif()',
    "function(add n)\n add_library(${n} ${ARGN})\nendfunction()\nadd(x a.cpp b.cpp)",
    "macro(s)\n set(files ${ARGV})\nendmacro()\ns(a.cpp b.cpp)\nadd_library(x ${files})",
    ("function(s)\n set(files a.cpp PARENT_SCOPE)\nendfunction()\ns()\nadd_library(x ${files} b.cpp)"),
    (
        "function(s)\n"
        ' cmake_parse_arguments(A "" "NAME" "SRCS" ${ARGN})\n'
        " add_library(${A_NAME} ${A_SRCS})\n"
        "endfunction()\n"
        "s(SRCS a.cpp b.cpp NAME x)"
    ),
    (
        "add_library(x a.cpp)\n"
        "if(CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT ANDROID)\n"
        " target_sources(x PRIVATE b.cpp)\n"
        "else()\n"
        " target_sources(x PRIVATE c.cpp)\n"
        "endif()\n"
        "set(ANDROID)"
    ),
    'string(REGEX REPLACE "([a-z]+)[.]h" "\\\\1.cpp" s "a.h;b.h")\nadd_library(x ${s})',
    "string(TOUPPER s n)\nset(S_FILES a.cpp b.cpp)\nadd_library(x ${${n}_FILES})",
    (
        "get_filename_component(d ${CMAKE_CURRENT_LIST_DIR}/sub/.. ABSOLUTE)\n"
        "add_library(x ${d}/a.cpp ${d}/b.cpp)"
    ),
    "file(GLOB s [ab].cpp)\nadd_library(x ${s})",
    "add_library(x $<BUILD_INTERFACE:a.cpp;b.cpp> $<INSTALL_INTERFACE:c.cpp>)",
    "add_library(x a.cpp $<$<PLATFORM_ID:Linux>:b.cpp> $<$<PLATFORM_ID:Android>:c.cpp>)",
    "add_library(x a.cpp $<IF:$<BOOL:${NOTHING}>,c.cpp,b.cpp>)\nset(NOTHING)",
    (
        "add_custom_command(OUTPUT made.cpp COMMAND touch made.cpp)\n"
        "add_library(x a.cpp b.cpp ${CMAKE_CURRENT_BINARY_DIR}/made.cpp)"
    ),
    ("add_library(x)\ntarget_sources(x PUBLIC FILE_SET HEADERS BASE_DIRS . FILES a.cpp PRIVATE b.cpp)"),
    "#[[ a comment\nadd_library(x c.cpp) ]]\nadd_library(x a.cpp # c.cpp\n b.cpp)",
    "set(s [[a.cpp]] [=[b.cpp]=])\nadd_library(x ${s})",
    (
        "add_library(y INTERFACE)\n"
        "add_library(n::x ALIAS y)\n"
        "if(TARGET n::x)\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "block()\n set(s c.cpp)\nendblock()\nset(t a.cpp b.cpp ${s})\nadd_library(x ${t})\nset(s)",
    "set(s a.cpp)\nblock(PROPAGATE s)\n list(APPEND s b.cpp)\nendblock()\nadd_library(x ${s})",
    "set(s a.cpp b.cpp)\nlist(SORT s)\nadd_library(x ${s})",
    (
        "foreach(n f IN ZIP_LISTS A B)\n"
        " list(APPEND s ${n}${f})\n"
        "endforeach()\n"
        "add_library(x ${s} a.cpp b.cpp)\n"
        "set(A)\n"
        "set(B)"
    ),
    (
        "set(A a b)\n"
        "set(B .cpp .cpp)\n"
        "foreach(n f IN ZIP_LISTS A B)\n"
        " list(APPEND s ${n}${f})\n"
        "endforeach()\n"
        "add_library(x ${s})"
    ),
    (
        "function(f out)\n"
        " set(${out} a.cpp b.cpp)\n"
        " return(PROPAGATE ${out})\n"
        "endfunction()\n"
        "f(s)\n"
        "add_library(x ${s})"
    ),
    (
        "cmake_policy(SET CMP0140 NEW)\n"
        "function(f out)\n"
        " set(${out} a.cpp b.cpp)\n"
        " return(PROPAGATE ${out})\n"
        "endfunction()\n"
        "f(s)\n"
        "add_library(x ${s})"
    ),
    "set(s a.cpp CACHE STRING doc)\nset(s b.cpp)\nadd_library(x ${s} $CACHE{s})\nunset(s CACHE)",
    (
        "set(l a b)\n"
        "if(a IN_LIST l AND NOT c IN_LIST l)\n"
        " add_library(x a.cpp b.cpp)\n"
        "else()\n"
        " add_library(x c.cpp)\n"
        "endif()"
    ),
    (
        "if(3.10 VERSION_GREATER 3.9 AND NOT 3.10 LESS 3.9)\n"
        " add_library(x c.cpp)\n"
        "else()\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "if(3.10 VERSION_GREATER_EQUAL 3.9)\n add_library(x a.cpp b.cpp)\nendif()",
    (
        "set(v FALSE)\n"
        "if(v)\n"
        " add_library(x c.cpp)\n"
        "elseif(NOT v OR FALSE)\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "set(v x-NOTFOUND)\nif(v)\n add_library(x c.cpp)\nelse()\n add_library(x a.cpp b.cpp)\nendif()",
    'set(v "")\nif("${v}" STREQUAL "")\n add_library(x a.cpp b.cpp)\nendif()',
    "set(v 1)\nif(v EQUAL 1.0)\n add_library(x a.cpp b.cpp)\nelse()\n add_library(x c.cpp)\nendif()",
    'set(v OFF)\nif("v")\n add_library(x c.cpp)\nelse()\n add_library(x a.cpp b.cpp)\nendif()',
    'if("ON")\n add_library(x a.cpp b.cpp)\nendif()',
    "set(v N)\nif(v)\n add_library(x c.cpp)\nelse()\n add_library(x a.cpp b.cpp)\nendif()",
    ("if(NOT TRUE OR TRUE AND FALSE)\n add_library(x c.cpp)\nelse()\n add_library(x a.cpp b.cpp)\nendif()"),
    ("if(FALSE AND FALSE OR TRUE)\n add_library(x a.cpp b.cpp)\nelse()\n add_library(x c.cpp)\nendif()"),
    (
        "if(NOT (FALSE OR TRUE) OR (TRUE AND (TRUE)))\n"
        " add_library(x a.cpp b.cpp)\n"
        "else()\n"
        " add_library(x c.cpp)\n"
        "endif()"
    ),
    ('if("abc" MATCHES "^(a)(b)")\n add_library(x ${CMAKE_MATCH_1}.cpp ${CMAKE_MATCH_2}.cpp)\nendif()'),
    'string(REGEX MATCHALL "[ab]" m "a-b")\nlist(TRANSFORM m APPEND .cpp)\nadd_library(x ${m})',
    'string(REPLACE "-" ";" m "a.cpp-b.cpp")\nadd_library(x ${m})',
    "string(CONCAT m a .cpp)\nstring(APPEND n b .cpp)\nadd_library(x ${m} ${n})",
    'string(JOIN ";" m a.cpp b.cpp)\nadd_library(x ${m})',
    'string(SUBSTRING "xxa.cpp" 2 -1 m)\nadd_library(x ${m} b.cpp)',
    'string(FIND "abc" "c" i)\nif(i EQUAL 2)\n add_library(x a.cpp b.cpp)\nendif()',
    'string(STRIP "  a.cpp " m)\nadd_library(x ${m} b.cpp)',
    "set(s c.cpp a.cpp b.cpp)\nlist(REMOVE_AT s 0)\nadd_library(x ${s})",
    "set(s c.cpp a.cpp b.cpp)\nlist(POP_FRONT s first)\nadd_library(x ${s})",
    "set(s a.cpp b.cpp c.cpp)\nlist(POP_BACK s)\nadd_library(x ${s})",
    "set(s b.cpp c.cpp)\nlist(INSERT s 0 a.cpp)\nlist(GET s 0 1 t)\nadd_library(x ${t})",
    (
        "set(s a.cpp a.cpp b.cpp)\n"
        "list(REMOVE_DUPLICATES s)\n"
        "list(LENGTH s n)\n"
        "if(n EQUAL 2)\n"
        " add_library(x ${s})\n"
        "endif()"
    ),
    'set(s a b)\nlist(TRANSFORM s REPLACE "(.+)" "\\\\1.cpp")\nadd_library(x ${s})',
    "file(GLOB s CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/[a-b].cpp)\nadd_library(x ${s})",
    (
        "file(RELATIVE_PATH r ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/a.cpp)\n"
        "add_library(x ${r} b.cpp)"
    ),
    (
        "get_filename_component(n ${CMAKE_CURRENT_SOURCE_DIR}/a.b.cpp NAME_WE)\n"
        "get_filename_component(e q.b.cpp LAST_EXT)\n"
        "add_library(x ${n}${e} b.cpp)"
    ),
    (
        "macro(m a)\n"
        " if(${a} STREQUAL yes)\n"
        "  set(s a.cpp b.cpp)\n"
        " endif()\n"
        "endmacro()\n"
        "m(yes)\n"
        "add_library(x ${s})"
    ),
    (
        "set(s a.cpp)\nmacro(inner f)\n add_library(x ${f} ${s})\nendmacro()\n"
        "macro(outer s)\n inner(${s})\nendmacro()\nouter(b.cpp)"
    ),
    'string(REGEX REPLACE "^q" "" s "qqa.cpp")\nadd_library(x ${s} b.cpp)',
    'string(REGEX MATCHALL "^[ab].cpp" s "a.cppb.cpp")\nadd_library(x ${s})',
    ("macro(m)\n return()\nendmacro()\nadd_library(x a.cpp b.cpp)\nm()\ntarget_sources(x PRIVATE c.cpp)"),
    ("function(m)\n return()\nendfunction()\nadd_library(x a.cpp)\nm()\ntarget_sources(x PRIVATE b.cpp)"),
    "function(f)\n set(s ${ARGV1} ${ARGN})\n add_library(x ${s})\nendfunction()\nf(a.cpp b.cpp)",
    "function(f a b)\n add_library(x ${ARGN} ${a})\nendfunction()\nf(a.cpp q b.cpp)",
    (
        "add_library(x a.cpp)\n"
        "foreach(n b c)\n"
        " if(n STREQUAL c)\n"
        "  break()\n"
        " endif()\n"
        " target_sources(x PRIVATE ${n}.cpp)\n"
        "endforeach()"
    ),
    (
        "add_library(x OBJECT a.cpp)\n"
        "add_library(xx STATIC $<TARGET_OBJECTS:x> c.cpp)\n"
        "target_sources(x PRIVATE b.cpp)"
    ),
    "add_library(x a.cpp $<$<CONFIG:Debug>:c.cpp> $<$<NOT:$<CONFIG:Debug>>:b.cpp>)",
    "add_library(x a.cpp $<$<AND:$<BOOL:ON>,$<NOT:$<PLATFORM_ID:Windows,Darwin>>>:b.cpp>)",
    'add_library(x "a.cpp;b.cpp")',
    'set(s "a.cpp" "b.cpp")\nadd_library(x "${s}")',
    "set(s a\\;b)\nadd_library(x a.cpp b.cpp)",
    "set(ENV{PQ} a.cpp)\nadd_library(x $ENV{PQ} b.cpp)",
    'option(O "doc" ON)\nif(O)\n add_library(x a.cpp b.cpp)\nendif()',
    (
        "set(O OFF)\n"
        'option(O "doc" ON)\n'
        "if(O)\n"
        " add_library(x c.cpp)\n"
        "else()\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "set(A a)\nset(B b)\nset(a_b a.cpp b.cpp)\nadd_library(x ${${A}_${B}})",
    "set(s a.cpp # c.cpp\n  b.cpp)\nadd_library(x ${s})",
    ("add_library(x a.cpp b.cpp)\nset_source_files_properties(a.cpp PROPERTIES COMPILE_FLAGS -O1)"),
    (
        "add_library(x a.cpp b.cpp)\n"
        "get_target_property(t x SOURCES)\n"
        "foreach(f IN LISTS t)\n"
        " message(STATUS ${f})\n"
        "endforeach()"
    ),
    (
        "foreach(i RANGE 1 5 2)\n"
        " list(APPEND s ${i})\n"
        "endforeach()\n"
        'if(s STREQUAL "1;3;5")\n'
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    (
        "foreach(n IN ITEMS a b LISTS none)\n"
        " list(APPEND s ${n}.cpp)\n"
        "endforeach()\n"
        "add_library(x ${s})\n"
        "set(none)"
    ),
    (
        "set(i 0)\n"
        "while(TRUE)\n"
        ' math(EXPR i "${i} + 1")\n'
        " if(i GREATER 3)\n"
        "  break()\n"
        " endif()\n"
        "endwhile()\n"
        "if(i EQUAL 4)\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    ('cmake_parse_arguments(P "Q" "N" "S;T" Q N x S a.cpp T c.cpp S b.cpp)\nadd_library(x ${P_S})\n'),
    (
        "function(f)\n"
        ' cmake_parse_arguments(PARSE_ARGV 0 P "" "" "S")\n'
        " add_library(x ${P_S})\n"
        "endfunction()\n"
        "f(S a.cpp b.cpp)"
    ),
    (
        "if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/a.cpp AND IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/sub)\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    (
        "if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/nope.cpp)\n"
        " add_library(x c.cpp)\n"
        "else()\n"
        " add_library(x a.cpp b.cpp)\n"
        "endif()"
    ),
    "set(q)\nif(DEFINED q)\n add_library(x c.cpp)\nelse()\n add_library(x a.cpp b.cpp)\nendif()",
    'set(q "")\nif(DEFINED q)\n add_library(x a.cpp b.cpp)\nendif()',
    ("configure_file(a.cpp ${CMAKE_CURRENT_BINARY_DIR}/a.cpp COPYONLY)\nadd_library(x b.cpp a.cpp)"),
    (
        "configure_file(a.cpp gen.cpp COPYONLY)\n"
        "add_library(x a.cpp b.cpp ${CMAKE_CURRENT_BINARY_DIR}/gen.cpp)"
    ),
    (
        "add_library(y INTERFACE)\n"
        "target_sources(y INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/b.cpp)\n"
        "add_library(x a.cpp)\n"
        "target_link_libraries(x PRIVATE y)"
    ),
    (
        "add_library(y INTERFACE)\n"
        "target_sources(y INTERFACE b.cpp)\n"
        "add_library(x a.cpp)\n"
        "target_link_libraries(x PRIVATE $<BUILD_INTERFACE:y>)"
    ),
    (
        "add_library(y STATIC c.cpp)\n"
        "target_sources(y PUBLIC b.cpp)\n"
        "add_library(z STATIC c.cpp)\n"
        "target_link_libraries(z PUBLIC y)\n"
        "add_library(x a.cpp)\n"
        "target_link_libraries(x z)"
    ),
    (
        "add_library(y STATIC c.cpp)\n"
        "target_sources(y PUBLIC c.cpp)\n"
        "add_library(z STATIC c.cpp)\n"
        "target_link_libraries(z PRIVATE y)\n"
        "add_library(x a.cpp b.cpp)\n"
        "target_link_libraries(x z)"
    ),
    "set(dir ${CMAKE_CURRENT_SOURCE_DIR}/sub/..)\nadd_library(x ${dir}/a.cpp ./b.cpp)",
    'string(REGEX REPLACE "^(.*)_([a-z])$" "\\\\2.cpp" s "foo_a")\nadd_library(x ${s} b.cpp)',
    'string(REGEX REPLACE "[.]h+$" ".cpp" s "a.hh")\nadd_library(x ${s} b.cpp)',
    'string(REGEX REPLACE "x{2}" "q" s "a.cpp")\nadd_library(x ${s} b.cpp)',
    "string(TOLOWER A l)\nadd_library(x ${l}.cpp b.cpp)",
    'string(MAKE_C_IDENTIFIER "a-b" l)\nif(l STREQUAL a_b)\n add_library(x a.cpp b.cpp)\nendif()',
    "set(x_SRC a.cpp)\nif(TRUE)\n list(APPEND x_SRC b.cpp)\nendif(TRUE)\nadd_library(x ${x_SRC})",
    'set(s "a.cpp\nb.cpp")\nstring(REPLACE "\\n" ";" s "${s}")\nadd_library(x ${s})',
)
