// What libkvferry.so makes visible. Everything else in it stays hidden.
#pragma once

#define KVFERRY_API [[gnu::visibility("default")]]
