// Moves money between accounts: a crash leaves the whole transfer or nothing of it, and a transfer that another thread
// has overtaken is tried again.
//
//     c++ -std=c++17 transfer.cpp $(pkg-config --cflags --libs outlast) -pthread -o transfer && ./transfer bank.pool
#include <outlast.hpp>

#include <iostream>
#include <thread>
#include <vector>

using number = std::uint64_t;

static bool transfer(outlast::pool &pool, outlast::map &accounts, const char *from, const char *to, number amount) {
    return pool.transaction([&](outlast::transaction &t) {
        number has = t.get_number<number>(accounts, from).value_or(0);
        if (has < amount) {
            return false;
        }
        t.put(accounts, from, has - amount);
        t.put(accounts, to, t.get_number<number>(accounts, to).value_or(0) + amount);
        return true;
    });
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: " << argv[0] << " POOL\n";
        return 2;
    }
    try {
        outlast::pool pool = outlast::pool::open_or_create(argv[1]);
        outlast::map accounts = pool.map("accounts", "str", "u64");
        accounts.insert("ada", number{1000});
        accounts.insert("bob", number{1000});

        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++) {
            threads.emplace_back([&, i] {
                for (int n = 0; n < 100; n++) {
                    transfer(pool, accounts, i % 2 ? "ada" : "bob", i % 2 ? "bob" : "ada", 7);
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        pool.wait_durable(); // From here on, the transfers survive a power loss.
        number sum = *accounts.get_number<number>("ada") + *accounts.get_number<number>("bob");
        std::cout << "ada and bob have " << sum << "\n";
        pool.close();
        return sum == 2000 ? 0 : 1;
    } catch (const outlast::error &error) {
        std::cerr << outlast_code_name(error.code()) << ": " << error.what() << "\n";
        return 1;
    }
}
